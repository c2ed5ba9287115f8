"""``edge_matrix_sum`` on the CPU: each matrix is read once per direction.

The matrices, ``[E, I, O]``, dominate the memory traffic, so both directions go destination by
destination, in the order in which the matrices are stored. In backward a matrix and its gradient
are handled together, and the gradients of sources, one row per edge, are summed afterwards.
``into`` is the initial value of the matrix gradients; empty for zero.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import kernel_part
from staticgraph.kernels.cpu_loop import Block, CpuLoop, Indices, Matrix, Pointers
from staticgraph.kernels.lanes import dot
from staticgraph.kernels.threads import on_threads, portion
from staticgraph.store.columns import Array


@CpuLoop
def forward(
    thread: int,
    threads: int,
    x: Matrix,
    matrices: Block,
    src: Indices,
    row_ptr: Pointers,
    mean: bool,
    out: Matrix,
) -> None:
    """Runs forward."""
    nodes, columns = out.shape
    zero, one = out.dtype.type(0), out.dtype.type(1)
    begin, end = portion(nodes, thread, threads)
    for i in range(begin, end):
        first, last = row_ptr[i], row_ptr[i + 1]
        share = one / out.dtype.type(max(last - first, 1) if mean else 1)
        for o in range(columns):
            out[i, o] = zero
        for e in range(first, last):
            j = src[e]
            for k in range(x.shape[1]):
                value = share * x[j, k]
                for o in range(columns):
                    out[i, o] += value * matrices[e, k, o]


@kernel_part
def _of_edges(
    thread: int,
    threads: int,
    grad: Array,
    x: Array,
    matrices: Array,
    src: Array,
    row_ptr: Array,
    into: Array,
    mean: bool,
    rows: Array,
    dmatrices: Array,
) -> None:
    """Computes the gradient of each edge's source row and of its matrix."""
    nodes, inputs = x.shape
    columns, one = grad.shape[1], grad.dtype.type(1)
    flat = matrices.reshape(-1)
    given = np.empty(columns, grad.dtype)
    begin, end = portion(nodes, thread, threads)
    for i in range(begin, end):
        first, last = row_ptr[i], row_ptr[i + 1]
        share = one / grad.dtype.type(max(last - first, 1) if mean else 1)
        for o in range(columns):
            given[o] = share * grad[i, o]
        for e in range(first, last):
            j = src[e]
            for k in range(inputs):
                rows[e, k] = dot(flat, (e * inputs + k) * columns, given, 0, columns)
                value = x[j, k]
                if len(into) > 0:
                    for o in range(columns):
                        dmatrices[e, k, o] = value * given[o] + into[e, k, o]
                else:
                    for o in range(columns):
                        dmatrices[e, k, o] = value * given[o]


@kernel_part
def _of_sources(
    thread: int, threads: int, rows: Array, col_ptr: Array, transpose: Array, dx: Array
) -> None:
    """Sums the row gradients of edges by source."""
    nodes, inputs = dx.shape
    begin, end = portion(nodes, thread, threads)
    for j in range(begin, end):
        for k in range(inputs):
            dx[j, k] = 0
        for n in range(col_ptr[j], col_ptr[j + 1]):
            e = transpose[n]
            for k in range(inputs):
                dx[j, k] += rows[e, k]


_edges_on_threads, _sources_on_threads = on_threads(_of_edges), on_threads(_of_sources)


@CpuLoop
def backward(
    grad: Matrix,
    x: Matrix,
    matrices: Block,
    src: Indices,
    row_ptr: Pointers,
    col_ptr: Pointers,
    transpose: Pointers,
    into_matrices: Block,
    mean: bool,
    dx: Matrix,
    dmatrices: Block,
    threads: int,
) -> None:
    """Runs backward."""
    rows = np.empty((len(src), x.shape[1]), grad.dtype)
    given = grad, x, matrices, src, row_ptr, into_matrices, mean
    _edges_on_threads(threads, (*given, rows, dmatrices))
    _sources_on_threads(threads, (rows, col_ptr, transpose, dx))
