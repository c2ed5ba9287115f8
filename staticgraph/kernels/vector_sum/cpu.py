"""``vector_sum`` on the CPU: a loop over the edges per direction, nothing of size ``[E, D, F]``.

Forward goes destination by destination, backward source by source, so every row is written by one
thread. The gate of a message is computed one row at a time; each step is a separate loop over the
columns, of few enough arrays for LLVM to vectorise it. ``x`` has no columns if the factors come
from the edges alone. An offset of -1 in ``places`` means that the part is missing.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import inlined, kernel, kernel_part
from staticgraph.kernels.addresses import carray, pointer
from staticgraph.kernels.lanes import dot
from staticgraph.kernels.threads import on_threads, portion
from staticgraph.store.columns import Array


@inlined
def _product(x: Array, j: int, edge: Array, e: int, at: int, given: bool, out: Array) -> None:
    """Multiplies the columns of an edge's row from ``at`` on by those of its source, if
    ``given``."""
    if given:
        for f in range(len(out)):
            out[f] = x[j, at + f] * edge[e, at + f]
    else:
        for f in range(len(out)):
            out[f] = edge[e, at + f]


@inlined
def _give_back(
    slope: Array, x: Array, j: int, edge: Array, e: int, at: int, dx: Array, dedge: Array
) -> None:
    """Propagates the gradient of a product's columns to both of its factors."""
    for f in range(len(slope)):
        dedge[e, at + f] = slope[f] * x[j, at + f]
    for f in range(len(slope)):
        dx[j, at + f] += slope[f] * edge[e, at + f]


@kernel_part
def _forward(
    thread: int,
    threads: int,
    x: Array,
    edge: Array,
    vectors: Array,
    unit: Array,
    src: Array,
    row_ptr: Array,
    gate: int,
    along: int,
    scalar: int,
    out: Array,
    total: Array,
) -> None:
    nodes, dims, width = out.shape
    given, zero = x.shape[1] > 0, out.dtype.type(0)
    part = np.empty(width, out.dtype)
    begin, end = portion(nodes, 1, thread, threads)
    for i in range(begin, end):
        for d in range(dims):
            for f in range(width):
                out[i, d, f] = zero
        if scalar >= 0:
            for f in range(width):
                total[i, f] = zero
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            _product(x, j, edge, e, gate, given, part)
            for d in range(dims):
                for f in range(width):
                    out[i, d, f] += vectors[j, d, f] * part[f]
            if along >= 0:
                _product(x, j, edge, e, along, given, part)
                for d in range(dims):
                    way = unit[e, d]
                    for f in range(width):
                        out[i, d, f] += way * part[f]
            if scalar >= 0:
                _product(x, j, edge, e, scalar, given, part)
                for f in range(width):
                    total[i, f] += part[f]


_forwards = on_threads(_forward)


@kernel
def forward(
    like: float,
    at: tuple[int, ...],
    sizes: tuple[int, ...],
    places: tuple[int, ...],
    threads: int,
) -> None:
    """Runs forward on the addresses of ``x, edge, vectors, unit, src, row_ptr, out, total``.

    ``sizes`` are ``N, E, D, F``, and the columns of ``edge`` and of ``x``. Every element of ``out``
    is written, and of ``total`` if there is a scalar part.
    """
    nodes, edges, dims, width, columns, given = sizes
    gate, along, scalar = places
    x = carray(pointer(at[0], like), (nodes, given))
    edge = carray(pointer(at[1], like), (edges, columns))
    vectors = carray(pointer(at[2], like), (nodes, dims, width))
    unit = carray(pointer(at[3], like), (edges, dims))
    src = carray(pointer(at[4], np.int64(0)), edges)
    row_ptr = carray(pointer(at[5], np.int32(0)), nodes + 1)
    out = carray(pointer(at[6], like), (nodes, dims, width))
    total = carray(pointer(at[7], like), (nodes, width))
    operands = x, edge, vectors, unit, src, row_ptr
    _forwards(threads, (*operands, gate, along, scalar, out, total))


@kernel_part
def _backward(
    thread: int,
    threads: int,
    grad: Array,
    on_total: Array,
    x: Array,
    edge: Array,
    vectors: Array,
    unit: Array,
    dst: Array,
    col_ptr: Array,
    transpose: Array,
    gate: int,
    along: int,
    scalar: int,
    dvectors: Array,
    dedge: Array,
    dunit: Array,
    dx: Array,
) -> None:
    nodes, dims, width = grad.shape
    given, zero = x.shape[1] > 0, grad.dtype.type(0)
    turned, moved = len(dunit) > 0, len(dvectors) > 0
    grads = grad.reshape(-1)
    part, slope = np.empty(width, grad.dtype), np.empty(width, grad.dtype)
    begin, end = portion(nodes, 1, thread, threads)
    for j in range(begin, end):
        for f in range(dx.shape[1]):
            dx[j, f] = zero
        if moved:
            for d in range(dims):
                for f in range(width):
                    dvectors[j, d, f] = zero
        for k in range(col_ptr[j], col_ptr[j + 1]):
            e = transpose[k]
            i = dst[e]
            for f in range(width):
                slope[f] = zero
            for d in range(dims):
                for f in range(width):
                    slope[f] += vectors[j, d, f] * grad[i, d, f]
            if moved:
                _product(x, j, edge, e, gate, given, part)
                for d in range(dims):
                    for f in range(width):
                        dvectors[j, d, f] += part[f] * grad[i, d, f]
            if given:
                _give_back(slope, x, j, edge, e, gate, dx, dedge)
            else:
                for f in range(width):
                    dedge[e, gate + f] = slope[f]
            if along >= 0:
                if turned:
                    _product(x, j, edge, e, along, given, part)
                    for d in range(dims):
                        dunit[e, d] = dot(part, 0, grads, (i * dims + d) * width, width)
                for f in range(width):
                    slope[f] = zero
                for d in range(dims):
                    way = unit[e, d]
                    for f in range(width):
                        slope[f] += way * grad[i, d, f]
                if given:
                    _give_back(slope, x, j, edge, e, along, dx, dedge)
                else:
                    for f in range(width):
                        dedge[e, along + f] = slope[f]
            if scalar >= 0:
                for f in range(width):
                    slope[f] = on_total[i, f]
                if given:
                    _give_back(slope, x, j, edge, e, scalar, dx, dedge)
                else:
                    for f in range(width):
                        dedge[e, scalar + f] = slope[f]


_backwards = on_threads(_backward)


@kernel
def backward(
    like: float,
    at: tuple[int, ...],
    sizes: tuple[int, ...],
    places: tuple[int, ...],
    moved: bool,
    turned: bool,
    threads: int,
) -> None:
    """Runs backward on the addresses of ``grad, on_total, x, edge, vectors, unit, dst, col_ptr,
    transpose, dvectors, dedge, dunit, dx``.

    ``sizes`` are as in forward. Of ``dedge`` the columns of the parts are written, of ``dx`` every
    element, and of ``dvectors`` and ``dunit`` every element if ``moved`` and ``turned``.
    """
    nodes, edges, dims, width, columns, given = sizes
    gate, along, scalar = places
    shape = nodes, dims, width
    number, small = np.int64(0), np.int32(0)
    grad = carray(pointer(at[0], like), shape)
    on_total = carray(pointer(at[1], like), (nodes, width))
    x = carray(pointer(at[2], like), (nodes, given))
    edge = carray(pointer(at[3], like), (edges, columns))
    vectors = carray(pointer(at[4], like), shape)
    unit = carray(pointer(at[5], like), (edges, dims))
    dst = carray(pointer(at[6], number), edges)
    col_ptr = carray(pointer(at[7], small), nodes + 1)
    transpose = carray(pointer(at[8], small), edges)
    dvectors = carray(pointer(at[9], like), (nodes if moved else 0, dims, width))
    dedge = carray(pointer(at[10], like), (edges, columns))
    dunit = carray(pointer(at[11], like), (edges if turned else 0, dims))
    dx = carray(pointer(at[12], like), (nodes, given))
    operands = grad, on_total, x, edge, vectors, unit, dst, col_ptr, transpose
    _backwards(threads, (*operands, gate, along, scalar, dvectors, dedge, dunit, dx))
