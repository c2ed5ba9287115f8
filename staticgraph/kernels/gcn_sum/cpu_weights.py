"""Gradients of edge weights through ``gcn_sum`` and ``gcn_degrees``, on the CPU.

The dot product of each message with the gradient of its destination is the only pass over rows; it
runs on torch's threads, divided by destination. Everything after it is one number per edge, summed
on one core in a fixed order. ``weight`` is empty if every edge has weight one.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import kernel, kernel_part
from staticgraph.kernels.addresses import carray, pointer
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


@kernel
def sum_backward(
    like: float,
    at: tuple[int, ...],
    nodes: int,
    width: int,
    edges: int,
    weighted: bool,
    loops: bool,
    threads: int,
) -> None:
    """Runs backward through ``gcn_sum`` on the addresses of ``grad, x, root, own, weight, src,
    row_ptr, droot, down, dweight``.

    Weight is read if ``weighted``. Every element of the last three is written.
    """
    grads = carray(pointer(at[0], like), nodes * width)
    rows = carray(pointer(at[1], like), nodes * width)
    root, own = carray(pointer(at[2], like), nodes), carray(pointer(at[3], like), nodes)
    weight = carray(pointer(at[4], like), edges if weighted else 0)
    src = carray(pointer(at[5], np.int64(0)), edges)
    row_ptr = carray(pointer(at[6], np.int32(0)), nodes + 1)
    droot, down = carray(pointer(at[7], like), nodes), carray(pointer(at[8], like), nodes)
    dweight = carray(pointer(at[9], like), edges)
    _products_on_threads(threads, (grads, rows, src, row_ptr, down, dweight))
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


@kernel
def degrees_backward(
    droot: Array,
    down: Array,
    root: Array,
    src: Array,
    row_ptr: Array,
    loops: bool,
    dweight: Array,
) -> None:
    """Runs backward through ``gcn_degrees``; writes every element of ``dweight``."""
    half, zero = root.dtype.type(-0.5), root.dtype.type(0)
    for i in range(len(root)):
        slope = half * root[i] * root[i] * root[i] * droot[i]
        last = -1
        for e in range(row_ptr[i], row_ptr[i + 1]):
            if loops and src[e] == i:
                last = e
                dweight[e] = zero
            else:
                dweight[e] = slope
        if last >= 0:
            dweight[last] = slope + down[i]
