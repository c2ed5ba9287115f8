"""``table_sum`` on the CPU: no sort, and the result is bitwise deterministic.

Each row of the result is written once. Gradient rows are added in row order, within a fixed number
of pieces.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import kernel_part
from staticgraph.kernels.cpu_loop import CpuLoop, IndexRows, Indices, Matrix
from staticgraph.kernels.table_sum.pieces import join, of_pieces
from staticgraph.kernels.threads import on_threads, portion
from staticgraph.store.columns import Array


@kernel_part
def _forward(
    thread: int,
    threads: int,
    index: Array,
    offsets: Array,
    weight: Array,
    out: Array,
    wrong: Array,
) -> None:
    """Computes one thread's rows; stores the first invalid position among them, or -1."""
    rows, columns = index.shape
    width = weight.shape[1]
    begin, end = portion(rows, thread, threads)
    wrong[thread] = -1
    for r in range(begin, end):
        to = out[r]
        for f in range(width):
            to[f] = 0
        for c in range(columns):
            entry = index[r, c] + offsets[c]
            if index[r, c] < 0 or entry >= offsets[c + 1]:
                wrong[thread] = r * columns + c
                return
            row = weight[entry]
            for f in range(width):
                to[f] += row[f]


_forwards = on_threads(_forward)


@CpuLoop
def forward(index: IndexRows, offsets: Indices, weight: Matrix, out: Matrix, threads: int) -> int:
    """Runs forward; returns -1, or the first position in ``index`` whose value is outside its
    table."""
    wrong = np.full(threads, -1)
    _forwards(threads, (index, offsets, weight, out, wrong))
    for place in wrong:
        if place >= 0:
            return place
    return -1


@kernel_part
def _backward(
    thread: int, threads: int, grad: Array, index: Array, offsets: Array, tables: Array
) -> None:
    """Computes one thread's tables, each for one piece of the rows."""
    rows, columns = index.shape
    width = grad.shape[1]
    begin, end = portion(len(tables), thread, threads)
    for piece in range(begin, end):
        table = tables[piece]
        table[:] = 0
        first, last = portion(rows, piece, len(tables))
        for r in range(first, last):
            row = grad[r]
            for c in range(columns):
                to = table[index[r, c] + offsets[c]]
                for f in range(width):
                    to[f] += row[f]


_backwards = on_threads(_backward)


@CpuLoop
def backward(
    grad: Matrix, index: IndexRows, offsets: Indices, dweight: Matrix, threads: int
) -> None:
    """Runs backward. The indices were checked by the forward pass."""
    tables = of_pieces(index.size, dweight)
    _backwards(min(threads, len(tables)), (grad, index, offsets, tables))
    join(tables, dweight)


@CpuLoop
def codes(index: IndexRows, offsets: Indices, out: Indices) -> int:
    """Computes mixed-radix numbers, last column fastest; returns the same as :func:`forward`."""
    rows, columns = index.shape
    for r in range(rows):
        code = 0
        for c in range(columns):
            size = offsets[c + 1] - offsets[c]
            if index[r, c] < 0 or index[r, c] >= size:
                return r * columns + c
            code = code * size + index[r, c]
        out[r] = code
    return -1
