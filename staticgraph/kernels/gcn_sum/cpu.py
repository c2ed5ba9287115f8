"""``gcn_sum`` on the CPU: one loop over the edges per direction, nothing of size ``[E, F]`` in
between.

``weight`` is empty if every edge has weight one. Of the gradients of edge weights, the dot product
of each message with the gradient of its destination is the only pass over rows; it runs on torch's
threads, divided by destination. Everything after it is one number per edge, summed on one core in a
fixed order.
"""

from __future__ import annotations

from staticgraph.jit import kernel_part
from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers, Vector
from staticgraph.kernels.lanes import dot
from staticgraph.kernels.threads import on_threads, portion
from staticgraph.store.columns import Array


@CpuLoop
def degrees(
    src: Indices,
    row_ptr: Pointers,
    weight: Vector,
    fill: float,
    loops: bool,
    root: Vector,
    own: Vector,
) -> None:
    """Computes ``gcn_degrees``."""
    weighted = len(weight) > 0
    zero, one = root.dtype.type(0), root.dtype.type(1)
    for i in range(len(root)):
        total, mine = zero, root.dtype.type(fill) if loops else zero
        for e in range(row_ptr[i], row_ptr[i + 1]):
            value = weight[e] if weighted else one
            if loops and src[e] == i:
                mine = value
            else:
                total += value
        total += mine
        own[i] = mine
        root[i] = zero if total == zero else one / total**0.5


@CpuLoop
def forward(
    thread: int,
    threads: int,
    x: Matrix,
    bias: Vector,
    root: Vector,
    own: Vector,
    weight: Vector,
    src: Indices,
    dst: Indices,
    row_ptr: Pointers,
    col_ptr: Pointers,
    transpose: Pointers,
    loops: bool,
    transposed: bool,
    out: Matrix,
) -> None:
    """Computes ``gcn_sum``; ``transposed``, over the edges out of each node."""
    nodes, width = x.shape
    ends, ptr = (dst, col_ptr) if transposed else (src, row_ptr)
    begin, end = portion(nodes, thread, threads)
    for i in range(begin, end):
        mine = root[i]
        first = own[i] * mine * mine
        for f in range(width):
            out[i, f] = first * x[i, f]
        for k in range(ptr[i], ptr[i + 1]):
            e = transpose[k] if transposed else k
            j = ends[e]
            if loops and j == i:
                continue
            part = mine * root[j]
            if len(weight) > 0:
                part = part * weight[e]
            for f in range(width):
                out[i, f] += part * x[j, f]
        if len(bias) > 0:
            for f in range(width):
                out[i, f] += bias[f]


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
    begin, end = portion(nodes, thread, threads)
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
