"""``gcn_sum`` on one core: one loop over the edges each way, nothing of size ``[E, F]`` in between.

``weight`` is empty where every edge weighs one.
"""

from __future__ import annotations

from staticgraph.kernels.jit import kernel
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
    """Every element of ``root`` and ``own`` is written."""
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


@kernel
def forward(
    x: Array,
    bias: Array,
    root: Array,
    own: Array,
    weight: Array,
    src: Array,
    row_ptr: Array,
    loops: bool,
    out: Array,
) -> None:
    """Every element of ``out`` is written."""
    width, weighted, biased = x.shape[1], len(weight) > 0, len(bias) > 0
    for i in range(len(x)):
        mine = root[i]
        first = own[i] * mine * mine
        for f in range(width):
            out[i, f] = first * x[i, f]
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            if loops and j == i:
                continue
            share = mine * root[j]
            if weighted:
                share = share * weight[e]
            for f in range(width):
                out[i, f] += share * x[j, f]
        if biased:
            for f in range(width):
                out[i, f] += bias[f]


@kernel
def backward(
    grad: Array,
    root: Array,
    own: Array,
    weight: Array,
    dst: Array,
    col_ptr: Array,
    transpose: Array,
    loops: bool,
    dx: Array,
) -> None:
    """Every element of ``dx`` is written."""
    width, weighted = grad.shape[1], len(weight) > 0
    for j in range(len(grad)):
        mine = root[j]
        first = own[j] * mine * mine
        for f in range(width):
            dx[j, f] = first * grad[j, f]
        for k in range(col_ptr[j], col_ptr[j + 1]):
            e = transpose[k]
            i = dst[e]
            if loops and i == j:
                continue
            share = mine * root[i]
            if weighted:
                share = share * weight[e]
            for f in range(width):
                dx[j, f] += share * grad[i, f]
