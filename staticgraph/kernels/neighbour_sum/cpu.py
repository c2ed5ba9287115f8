"""``neighbour_sum`` on the CPU: two loops over the edges, nothing of size ``[E, F]`` in between.

Forward goes destination by destination, backward source by source through the transpose, so every
row of the result is written by one thread. What an edge adds is chosen per edge, outside of the
loops over columns, which have few enough arrays for LLVM to prove that they do not overlap and
vectorise them. If edges read a shared table, its gradient is accumulated per piece of the sources
(:mod:`staticgraph.kernels.table_sum.pieces`).

In both, ``edge`` is ``[V, F]``, or ``[V, 1]`` with one number per edge; ``code`` is empty if edge
``e`` reads row ``e``, and ``weight`` is empty if every message has weight one. ``into_x`` and
``into_edge`` are the initial values of the gradients; empty for zero.
"""

from __future__ import annotations

from staticgraph.jit import inlined, kernel_part
from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers, Vector
from staticgraph.kernels.lanes import dot
from staticgraph.kernels.neighbour_sum.reference import COPY, MULTIPLY, WEIGHED
from staticgraph.kernels.table_sum.pieces import join, of_pieces
from staticgraph.kernels.threads import on_threads, portion
from staticgraph.store.columns import Array


@inlined
def _start(rows: Array, i: int, self_eps: Array, out: Array) -> None:
    """Sets ``out[i] = (1 + self_eps) rows[i]``; zero if that factor is zero or missing, even where
    the row is not finite."""
    zero, factor = rows.dtype.type(0), rows.dtype.type(0)
    if len(self_eps) > 0:
        factor = rows.dtype.type(1) + self_eps[0]
    if factor == zero:
        for f in range(rows.shape[1]):
            out[i, f] = zero
    else:
        for f in range(rows.shape[1]):
            out[i, f] = factor * rows[i, f]


@CpuLoop
def forward(
    thread: int,
    threads: int,
    x: Matrix,
    edge: Matrix,
    code: Indices,
    weight: Vector,
    src: Indices,
    row_ptr: Pointers,
    self_eps: Vector,
    transform: int,
    mean: bool,
    out: Matrix,
) -> None:
    """Runs forward."""
    width, zero, one = x.shape[1], x.dtype.type(0), x.dtype.type(1)
    coded, weighted, scalar = len(code) > 0, len(weight) > 0, edge.shape[1] == 1
    begin, end = portion(len(x), thread, threads)
    for i in range(begin, end):
        first, last = row_ptr[i], row_ptr[i + 1]
        share = one / x.dtype.type(max(last - first, 1) if mean else 1)
        _start(x, i, self_eps, out)
        for e in range(first, last):
            j, r = src[e], code[e] if coded else e
            if transform == COPY:
                for f in range(width):
                    out[i, f] += share * x[j, f]
            elif transform == MULTIPLY and scalar:
                part = share * edge[r, 0]
                for f in range(width):
                    out[i, f] += x[j, f] * part
            elif transform == MULTIPLY:
                for f in range(width):
                    out[i, f] += share * x[j, f] * edge[r, f]
            else:
                part = share * weight[e] if weighted else share
                for f in range(width):
                    value = x[j, f] + edge[r, f]
                    out[i, f] += zero if value <= zero else part * value


@kernel_part
def _backward(
    thread: int,
    threads: int,
    pieces: int,
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    edges: tuple[Array, Array, Array, Array],
    weight: Array,
    self_eps: Array,
    into_x: Array,
    transform: int,
    mean: bool,
    shared: bool,
    dx: Array,
    dedge: Array,
    tables: Array,
) -> None:
    width, zero, one = grad.shape[1], grad.dtype.type(0), grad.dtype.type(1)
    dst, row_ptr, col_ptr, transpose = edges
    coded, weighted, scalar = len(code) > 0, len(weight) > 0, edge.shape[1] == 1
    grads, rows = grad.reshape(-1), x.reshape(-1)
    begin, end = portion(pieces, thread, threads)
    for piece in range(begin, end):
        first, last = portion(len(grad), piece, pieces)
        table = tables[piece] if shared else dedge
        if shared:
            table[:] = 0
        for j in range(first, last):
            _start(grad, j, self_eps, dx)
            if len(into_x) > 0:
                for f in range(width):
                    dx[j, f] += into_x[j, f]
            for k in range(col_ptr[j], col_ptr[j + 1]):
                e = transpose[k]
                i = dst[e]
                part = one / grad.dtype.type(row_ptr[i + 1] - row_ptr[i] if mean else 1)
                if weighted:
                    part *= weight[e]
                r = code[e] if coded else e
                to = r if shared else e
                if transform == COPY or scalar:
                    factor = part if transform == COPY else part * edge[r, 0]
                    for f in range(width):
                        dx[j, f] += factor * grad[i, f]
                    if transform == MULTIPLY:
                        total = part * dot(grads, i * width, rows, j * width, width)
                        table[to, 0] = total + (table[to, 0] if shared else zero)
                elif transform == MULTIPLY:
                    for f in range(width):
                        dx[j, f] += part * grad[i, f] * edge[r, f]
                    if shared:
                        for f in range(width):
                            table[to, f] += part * grad[i, f] * x[j, f]
                    else:
                        for f in range(width):
                            table[to, f] = part * grad[i, f] * x[j, f]
                else:
                    for f in range(width):
                        slope = zero if x[j, f] + edge[r, f] <= zero else part * grad[i, f]
                        dx[j, f] += slope
                        if shared:
                            table[to, f] += slope
                        else:
                            table[to, f] = slope


_backwards = on_threads(_backward)


@CpuLoop
def backward(
    grad: Matrix,
    x: Matrix,
    edge: Matrix,
    code: Indices,
    dst: Indices,
    row_ptr: Pointers,
    col_ptr: Pointers,
    transpose: Pointers,
    weight: Vector,
    self_eps: Vector,
    into_x: Matrix,
    into_edge: Matrix,
    transform: int,
    mean: bool,
    each: bool,
    dx: Matrix,
    dedge: Matrix,
    threads: int,
) -> None:
    """Runs backward; ``dedge`` is not touched by ``copy`` and ``weighed``."""
    shared = len(code) > 0 and not each and transform != WEIGHED
    tables = of_pieces(len(code), edge if shared else edge[:0])
    pieces, edges = len(tables) if shared else threads, (dst, row_ptr, col_ptr, transpose)
    given = edge, code, edges, weight, self_eps, into_x, transform, mean, shared
    _backwards(min(threads, pieces), (pieces, grad, x, *given, dx, dedge, tables))
    if shared:
        join(tables, dedge)
    elif len(code) == 0 and not each and transform != COPY and len(dst) == 0:
        dedge[:] = 0  # a table that no edge reads
    if len(into_edge) > 0:
        dedge += into_edge
