"""The backward loops of :mod:`staticgraph.kernels.neighbour_sum.cpu`, source by source.

If edges read a shared table, its gradient is accumulated per piece of the sources
(:mod:`staticgraph.kernels.table_sum.pieces`).
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import kernel, kernel_part
from staticgraph.kernels.addresses import carray, pointer
from staticgraph.kernels.lanes import dot
from staticgraph.kernels.neighbour_sum.own_term import own_term
from staticgraph.kernels.table_sum.pieces import join, of_pieces
from staticgraph.kernels.threads import on_threads, portion
from staticgraph.store.columns import Array


@kernel_part
def _operands(like: float, at: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Array, ...]:
    """Returns the operands as arrays at their addresses.

    These are ``grad, x, edge, code, dst, row_ptr, col_ptr, transpose, into_x, into_edge, dx,
    dedge``. ``sizes`` are ``N, F``, the sizes of ``edge``, ``code`` and ``dst``, and the rows of
    ``into_x`` and ``into_edge``. The last address and size are those of ``weight``, which
    :func:`_weights` reads.
    """
    nodes, width, entries, columns, codes, edges, on_nodes, on_edges, _ = sizes
    number, small = np.int64(0), np.int32(0)
    return (
        carray(pointer(at[0], like), (nodes, width)),
        carray(pointer(at[1], like), (nodes, width)),
        carray(pointer(at[2], like), (entries, columns)),
        carray(pointer(at[3], number), codes),
        carray(pointer(at[4], number), edges),
        carray(pointer(at[5], small), nodes + 1),
        carray(pointer(at[6], small), nodes + 1),
        carray(pointer(at[7], small), edges),
        carray(pointer(at[8], like), (on_nodes, width)),
        carray(pointer(at[9], like), (on_edges, columns)),
        carray(pointer(at[10], like), (nodes, width)),
        carray(pointer(at[11], like), (entries, columns)),
    )


@kernel_part
def _weights(like: float, at: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """Returns the factors of the messages; empty if all are one."""
    return carray(pointer(at[12], like), sizes[8])


@kernel_part
def _copy(
    thread: int,
    threads: int,
    grad: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    dx: Array,
    scale: float,
    mean: bool,
) -> None:
    width = grad.shape[1]
    first, last = portion(len(grad), 1, thread, threads)
    for j in range(first, last):
        own_term(grad, j, scale, dx)
        if len(into_x) > 0:
            for f in range(width):
                dx[j, f] += into_x[j, f]
        for k in range(col_ptr[j], col_ptr[j + 1]):
            i = dst[transpose[k]]
            weight = grad.dtype.type(1) / grad.dtype.type(
                row_ptr[i + 1] - row_ptr[i] if mean else 1
            )
            for f in range(width):
                dx[j, f] += weight * grad[i, f]


@kernel_part
def _weigh(
    thread: int,
    threads: int,
    grad: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    dx: Array,
    scale: float,
    mean: bool,
) -> None:
    width = grad.shape[1]
    coded = len(code) > 0
    first, last = portion(len(grad), 1, thread, threads)
    for j in range(first, last):
        own_term(grad, j, scale, dx)
        if len(into_x) > 0:
            for f in range(width):
                dx[j, f] += into_x[j, f]
        for k in range(col_ptr[j], col_ptr[j + 1]):
            e = transpose[k]
            i = dst[e]
            weight = edge[code[e] if coded else e, 0]
            if mean:
                weight /= grad.dtype.type(row_ptr[i + 1] - row_ptr[i])
            for f in range(width):
                dx[j, f] += weight * grad[i, f]


@kernel_part
def _multiply(
    thread: int,
    threads: int,
    pieces: int,
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    dx: Array,
    dedge: Array,
    tables: Array,
    scale: float,
    mean: bool,
) -> None:
    width, zero = grad.shape[1], grad.dtype.type(0)
    coded, scalar = len(code) > 0, edge.shape[1] == 1
    grads, rows = grad.reshape(-1), x.reshape(-1)
    begin, end = portion(pieces, 1, thread, threads)
    for piece in range(begin, end):
        first, last = portion(len(grad), 1, piece, pieces)
        table = tables[piece] if coded else dedge
        if coded:
            table[:] = 0
        for j in range(first, last):
            own_term(grad, j, scale, dx)
            if len(into_x) > 0:
                for f in range(width):
                    dx[j, f] += into_x[j, f]
            for k in range(col_ptr[j], col_ptr[j + 1]):
                e = transpose[k]
                i = dst[e]
                degree = row_ptr[i + 1] - row_ptr[i] if mean else 1
                part = grad.dtype.type(1) / grad.dtype.type(degree)
                r = code[e] if coded else e
                if scalar:
                    weight = part * edge[r, 0]
                    for f in range(width):
                        dx[j, f] += weight * grad[i, f]
                    total = dot(grads, i * width, rows, j * width, width)
                    table[r, 0] = part * total + (table[r, 0] if coded else zero)
                    continue
                for f in range(width):
                    slope = part * grad[i, f]
                    dx[j, f] += slope * edge[r, f]
                    if coded:
                        table[r, f] += slope * x[j, f]
                    else:
                        table[r, f] = slope * x[j, f]


@kernel_part
def _relu_add(
    thread: int,
    threads: int,
    pieces: int,
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    weight: Array,
    into_x: Array,
    dx: Array,
    dedge: Array,
    tables: Array,
    scale: float,
    mean: bool,
) -> None:
    width, zero = grad.shape[1], grad.dtype.type(0)
    coded, weighted = len(code) > 0, len(weight) > 0
    begin, end = portion(pieces, 1, thread, threads)
    for piece in range(begin, end):
        first, last = portion(len(grad), 1, piece, pieces)
        table = tables[piece] if coded else dedge
        if coded:
            table[:] = 0
        for j in range(first, last):
            own_term(grad, j, scale, dx)
            if len(into_x) > 0:
                for f in range(width):
                    dx[j, f] += into_x[j, f]
            for k in range(col_ptr[j], col_ptr[j + 1]):
                e = transpose[k]
                i = dst[e]
                degree = row_ptr[i + 1] - row_ptr[i] if mean else 1
                part = grad.dtype.type(1) / grad.dtype.type(degree)
                if weighted:
                    part *= weight[e]
                r = code[e] if coded else e
                for f in range(width):
                    slope = zero if x[j, f] + edge[r, f] <= zero else part * grad[i, f]
                    dx[j, f] += slope
                    if coded:
                        table[r, f] += slope
                    else:
                        table[r, f] = slope


_copies = on_threads(_copy)
_weighs = on_threads(_weigh)
_multiplies = on_threads(_multiply)
_relu_adds = on_threads(_relu_add)


@kernel_part
def _pieces(edge: Array, code: Array, threads: int) -> tuple[Array, int]:
    """Returns one table per piece of the sources, and the number of pieces.

    The tables have no rows if each edge has its own row.
    """
    coded = len(code) > 0
    tables = of_pieces(len(code), edge if coded else edge[:0])
    return tables, len(tables) if coded else threads


@kernel_part
def _add_up(tables: Array, code: Array, into_edge: Array, dedge: Array) -> None:
    """Adds the pieces' tables, if edges read one, and the gradient of the edges handed on."""
    if len(code) > 0:
        join(tables, dedge)
    if len(into_edge) > 0:
        dedge += into_edge


@kernel
def copy_backward(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool, threads: int
) -> None:
    """Runs backward of ``copy``; ``dedge`` is not touched."""
    operands = _operands(like, at, sizes)
    grad, dst, row_ptr, col_ptr, transpose = operands[0], *operands[4:8]
    into_x, dx = operands[8], operands[10]
    _copies(threads, (grad, dst, row_ptr, col_ptr, transpose, into_x, dx, scale, mean))


@kernel
def multiply_backward(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool, threads: int
) -> None:
    """Runs backward of ``multiply``; every row of ``dx`` and ``dedge`` is written."""
    operands = _operands(like, at, sizes)
    edge, code, into_x, into_edge, dx, dedge = *operands[2:4], *operands[8:]
    tables, pieces = _pieces(edge, code, threads)
    _multiplies(
        min(threads, pieces), (pieces, *operands[:8], into_x, dx, dedge, tables, scale, mean)
    )
    _add_up(tables, code, into_edge, dedge)


@kernel
def weighed_backward(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool, threads: int
) -> None:
    """Runs backward of ``multiply`` with one number per edge and no gradient for it; ``dedge`` is
    not touched."""
    operands = _operands(like, at, sizes)
    grad, edge, code, dst, row_ptr = operands[0], *operands[2:6]
    col_ptr, transpose, into_x, dx = *operands[6:9], operands[10]
    given = grad, edge, code, dst, row_ptr, col_ptr, transpose, into_x, dx, scale, mean
    _weighs(threads, given)


@kernel
def relu_add_backward(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool, threads: int
) -> None:
    """Runs backward of ``relu_add``; every row of ``dx`` and ``dedge`` is written."""
    operands = _operands(like, at, sizes)
    edge, code, into_x, into_edge, dx, dedge = *operands[2:4], *operands[8:]
    tables, pieces = _pieces(edge, code, threads)
    weight = _weights(like, at, sizes)
    given = pieces, *operands[:8], weight, into_x, dx, dedge, tables, scale, mean
    _relu_adds(min(threads, pieces), given)
    _add_up(tables, code, into_edge, dedge)
