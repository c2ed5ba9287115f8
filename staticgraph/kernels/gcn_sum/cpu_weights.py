"""Gradients of edge weights through ``gcn_sum`` and ``gcn_degrees``, on the CPU.

The dot product of each message with the gradient of its destination is the only pass over rows; it
runs on torch's threads, divided by destination. Everything after it is one number per edge, summed
on one core in a fixed order. ``weight`` is empty if every edge has weight one.
"""

from __future__ import annotations

from staticgraph.jit import kernel_part
from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers, Vector
from staticgraph.kernels.lanes import dot
from staticgraph.kernels.threads import on_threads, portion
from staticgraph.store.columns import Array


@kernel_part
def _products(
    thread: int,
    threads: int,
    grads: Array,
    rows: Array,
    src: Array,
    row_ptr: Array,
    down: Array,
    dweight: Array,
) -> None:
    """Computes the dot product of each destination's gradient with its own row and its neighbours'
    rows."""
    nodes = len(down)
    width = len(grads) // max(nodes, 1)
    begin, end = portion(nodes, 1, thread, threads)
    for i in range(begin, end):
        down[i] = dot(grads, i * width, rows, i * width, width)
        for e in range(row_ptr[i], row_ptr[i + 1]):
            dweight[e] = dot(grads, i * width, rows, src[e] * width, width)


_products_on_threads = on_threads(_products)


@CpuLoop
def sum_backward(
    grad: Matrix,
    x: Matrix,
    root: Vector,
    own: Vector,
    weight: Vector,
    src: Indices,
    row_ptr: Pointers,
    loops: bool,
    droot: Vector,
    down: Vector,
    dweight: Vector,
    threads: int,
) -> None:
    """Runs backward through ``gcn_sum``, for all but the rows."""
    nodes, weighted = len(x), len(weight) > 0
    _products_on_threads(threads, (grad.reshape(-1), x.reshape(-1), src, row_ptr, down, dweight))
    two, zero = root.dtype.type(2), root.dtype.type(0)
    for i in range(nodes):
        droot[i] = two * own[i] * root[i] * down[i]
        down[i] *= root[i] * root[i]
    for i in range(nodes):
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            if loops and j == i:
                dweight[e] = zero
                continue
            part = dweight[e]
            dweight[e] = part * root[i] * root[j]
            if weighted:
                part *= weight[e]
            droot[i] += part * root[j]
            droot[j] += part * root[i]


@CpuLoop
def degrees_backward(
    grad_root: Vector,
    grad_own: Vector,
    root: Vector,
    src: Indices,
    row_ptr: Pointers,
    loops: bool,
    dweight: Vector,
) -> None:
    """Runs backward through ``gcn_degrees``."""
    half = root.dtype.type(-0.5)
    for i in range(len(root)):
        slope = half * root[i] * root[i] * root[i] * grad_root[i]
        for e in range(row_ptr[i], row_ptr[i + 1]):
            dweight[e] = slope + grad_own[i] if loops and src[e] == i else slope
