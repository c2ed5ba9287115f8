"""``gcn_sum`` on the CPU: one loop over the edges per direction, nothing of size ``[E, F]`` in
between.

``weight`` is empty if every edge has weight one.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import kernel, kernel_part
from staticgraph.kernels.addresses import carray, pointer
from staticgraph.kernels.threads import on_threads, portion
from staticgraph.store.columns import Array


@kernel
def degrees(
    src: Array,
    row_ptr: Array,
    weight: Array,
    fill: float,
    loops: bool,
    root: Array,
    own: Array,
) -> None:
    """Computes ``gcn_degrees``; writes every element of ``root`` and ``own``."""
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


@kernel_part
def _forward(
    thread: int,
    threads: int,
    x: Array,
    bias: Array,
    root: Array,
    own: Array,
    weight: Array,
    src: Array,
    row_ptr: Array,
    out: Array,
    loops: bool,
) -> None:
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


_forwards = on_threads(_forward)


@kernel
def forward(
    like: float,
    at: tuple[int, ...],
    nodes: int,
    width: int,
    edges: int,
    biased: bool,
    weighted: bool,
    loops: bool,
    threads: int,
) -> None:
    """Runs forward on the addresses of ``x, bias, root, own, weight, src, row_ptr, out``.

    Bias and weight are read if ``biased`` and ``weighted``. Every element of ``out`` is written.
    """
    x = carray(pointer(at[0], like), (nodes, width))
    bias = carray(pointer(at[1], like), width if biased else 0)
    root, own = carray(pointer(at[2], like), nodes), carray(pointer(at[3], like), nodes)
    weight = carray(pointer(at[4], like), edges if weighted else 0)
    src = carray(pointer(at[5], np.int64(0)), edges)
    row_ptr = carray(pointer(at[6], np.int32(0)), nodes + 1)
    out = carray(pointer(at[7], like), (nodes, width))
    _forwards(threads, (x, bias, root, own, weight, src, row_ptr, out, loops))


@kernel_part
def _backward(
    thread: int,
    threads: int,
    grad: Array,
    root: Array,
    own: Array,
    weight: Array,
    dst: Array,
    col_ptr: Array,
    transpose: Array,
    dx: Array,
    loops: bool,
) -> None:
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


_backwards = on_threads(_backward)


@kernel
def backward(
    like: float,
    at: tuple[int, ...],
    nodes: int,
    width: int,
    edges: int,
    weighted: bool,
    loops: bool,
    threads: int,
) -> None:
    """Runs backward on the addresses of ``grad, root, own, weight, dst, col_ptr, transpose, dx``.

    Weight is read if ``weighted``. Every element of ``dx`` is written.
    """
    shape = nodes, width
    grad, dx = carray(pointer(at[0], like), shape), carray(pointer(at[7], like), shape)
    root, own = carray(pointer(at[1], like), nodes), carray(pointer(at[2], like), nodes)
    weight = carray(pointer(at[3], like), edges if weighted else 0)
    dst = carray(pointer(at[4], np.int64(0)), edges)
    col_ptr = carray(pointer(at[5], np.int32(0)), nodes + 1)
    transpose = carray(pointer(at[6], np.int32(0)), edges)
    _backwards(threads, (grad, root, own, weight, dst, col_ptr, transpose, dx, loops))
