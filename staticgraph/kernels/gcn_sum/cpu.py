"""``gcn_sum`` on the CPU: one loop over the edges per direction, nothing of size ``[E, F]`` in
between.

``weight`` is empty if every edge has weight one.
"""

from __future__ import annotations

from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers, Vector
from staticgraph.kernels.threads import portion


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
    row_ptr: Pointers,
    loops: bool,
    out: Matrix,
) -> None:
    """Runs forward."""
    nodes, width = x.shape
    begin, end = portion(nodes, 1, thread, threads)
    for i in range(begin, end):
        mine = root[i]
        first = own[i] * mine * mine
        for f in range(width):
            out[i, f] = first * x[i, f]
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
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


@CpuLoop
def backward(
    thread: int,
    threads: int,
    grad: Matrix,
    root: Vector,
    own: Vector,
    weight: Vector,
    dst: Indices,
    col_ptr: Pointers,
    transpose: Pointers,
    loops: bool,
    dx: Matrix,
) -> None:
    """Runs backward, for the rows alone."""
    nodes, width = grad.shape
    begin, end = portion(nodes, 1, thread, threads)
    for j in range(begin, end):
        mine = root[j]
        first = own[j] * mine * mine
        for f in range(width):
            dx[j, f] = first * grad[j, f]
        for k in range(col_ptr[j], col_ptr[j + 1]):
            e = transpose[k]
            i = dst[e]
            if loops and i == j:
                continue
            part = mine * root[i]
            if len(weight) > 0:
                part = part * weight[e]
            for f in range(width):
                dx[j, f] += part * grad[i, f]
