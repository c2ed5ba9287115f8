"""``vector_sum`` on the CPU: a loop over the edges per direction, nothing of size ``[E, D, F]``.

Forward goes destination by destination, backward source by source, so every row is written by one
thread. The gate of a message is computed one row at a time; each step is a separate loop over the
columns, of few enough arrays for LLVM to vectorise it. ``x`` has no columns if the factors come
from the edges alone. An offset of -1 in ``places`` means that the part is missing.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import inlined
from staticgraph.kernels.cpu_loop import Block, CpuLoop, Indices, Matrix, Pointers
from staticgraph.kernels.lanes import dot
from staticgraph.kernels.threads import portion
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


@CpuLoop
def forward(
    thread: int,
    threads: int,
    vectors: Block,
    x: Matrix,
    edge: Matrix,
    unit: Matrix,
    src: Indices,
    row_ptr: Pointers,
    gate: int,
    along: int,
    scalar: int,
    out: Block,
    total: Matrix,
) -> None:
    """Runs forward."""
    nodes, dims, width = out.shape
    given, zero = x.shape[1] > 0, out.dtype.type(0)
    part = np.empty(width, out.dtype)
    begin, end = portion(nodes, thread, threads)
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


@CpuLoop
def backward(
    thread: int,
    threads: int,
    grad: Block,
    grad_total: Matrix,
    x: Matrix,
    edge: Matrix,
    vectors: Block,
    unit: Matrix,
    dst: Indices,
    col_ptr: Pointers,
    transpose: Pointers,
    gate: int,
    along: int,
    scalar: int,
    dvectors: Block,
    dedge: Matrix,
    dunit: Matrix,
    dx: Matrix,
) -> None:
    """Runs backward."""
    nodes, dims, width = grad.shape
    given, zero = x.shape[1] > 0, grad.dtype.type(0)
    turned, moved = len(dunit) > 0, len(dvectors) > 0
    whole = (1 + (along >= 0) + (scalar >= 0)) * width == edge.shape[1]
    grads = grad.reshape(-1)
    part, slope = np.empty(width, grad.dtype), np.empty(width, grad.dtype)
    begin, end = portion(nodes, thread, threads)
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
            if not whole:  # a column that no part reads gets zero
                for f in range(edge.shape[1]):
                    dedge[e, f] = zero
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
                    slope[f] = grad_total[i, f]
                if given:
                    _give_back(slope, x, j, edge, e, scalar, dx, dedge)
                else:
                    for f in range(width):
                        dedge[e, scalar + f] = slope[f]
