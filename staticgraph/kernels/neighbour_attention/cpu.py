"""``neighbour_attention`` on one core: one loop over destinations each way.

``pair``, ``edge`` and ``own`` are empty where they were not given. The softmax's shares are kept
for the way back, since an exponential costs more than reading one. Backward scatters as it goes:
one core adds in one order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.kernels.jit import kernel
from staticgraph.store.columns import Array


@kernel
def _score(pair: Array, edge: Array, r: int, j: int, i: int, h: int, zero: Any) -> Any:
    """Before the leaky ReLU."""
    value = zero
    if pair.shape[0] > 0:
        value += pair[h, j, 0] + pair[h, i, 1]
    if edge.shape[0] > 0:
        value += edge[r, h]
    return value


@kernel
def _leaky(value: Any, slope: Any) -> Any:
    return value if value > 0 else slope * value


@kernel
def _towards(grad: Array, x: Array, out: Array, zero: Any) -> Any:
    """``grad . (x - out)``, in eight sums that the vector unit can hold side by side."""
    width = len(grad)
    a = b = c = d = p = q = r = s = zero
    whole = width - width % 8
    for k in range(0, whole, 8):
        a += grad[k] * (x[k] - out[k])
        b += grad[k + 1] * (x[k + 1] - out[k + 1])
        c += grad[k + 2] * (x[k + 2] - out[k + 2])
        d += grad[k + 3] * (x[k + 3] - out[k + 3])
        p += grad[k + 4] * (x[k + 4] - out[k + 4])
        q += grad[k + 5] * (x[k + 5] - out[k + 5])
        r += grad[k + 6] * (x[k + 6] - out[k + 6])
        s += grad[k + 7] * (x[k + 7] - out[k + 7])
    for k in range(whole, width):
        a += grad[k] * (x[k] - out[k])
    return ((a + b) + (c + d)) + ((p + q) + (r + s))


@kernel
def forward(
    x: Array,
    pair: Array,
    edge: Array,
    own: Array,
    src: Array,
    row_ptr: Array,
    slope: float,
    loops: bool,
    out: Array,
    share: Array,
    own_share: Array,
) -> None:
    """Every element of ``out [N, H, C]``, ``share [E, H]`` and ``own_share [N, H]`` is written."""
    nodes, heads, width = x.shape
    zero, one, tilt = x.dtype.type(0), x.dtype.type(1), x.dtype.type(slope)
    for i in range(nodes):
        first, last = row_ptr[i], row_ptr[i + 1]
        for h in range(heads):
            largest = x.dtype.type(-np.inf)
            if loops:
                largest = _leaky(_score(pair, own, i, i, i, h, zero), tilt)
                own_share[i, h] = largest
            for e in range(first, last):
                if loops and src[e] == i:
                    continue
                value = _leaky(_score(pair, edge, e, src[e], i, h, zero), tilt)
                share[e, h] = value
                if value > largest or value != value:
                    largest = value
            total = zero
            if loops:
                own_share[i, h] = np.exp(own_share[i, h] - largest)
                total += own_share[i, h]
            for e in range(first, last):
                if loops and src[e] == i:
                    share[e, h] = zero
                    continue
                share[e, h] = np.exp(share[e, h] - largest)
                total += share[e, h]
            part = one / total
            if loops:
                own_share[i, h] *= part
            for e in range(first, last):
                share[e, h] *= part
        for h in range(heads):
            mine = own_share[i, h] if loops else zero
            for c in range(width):
                out[i, h, c] = mine * x[i, h, c] if loops else zero
        for e in range(first, last):
            j = src[e]
            for h in range(heads):
                part = share[e, h]
                for c in range(width):
                    out[i, h, c] += part * x[j, h, c]


@kernel
def backward(
    grad: Array,
    x: Array,
    out: Array,
    share: Array,
    own_share: Array,
    pair: Array,
    edge: Array,
    own: Array,
    src: Array,
    row_ptr: Array,
    slope: float,
    loops: bool,
    dx: Array,
    dpair: Array,
    dedge: Array,
    down: Array,
) -> None:
    """``dx`` and ``dpair`` come zeroed; every element of ``dedge`` and ``down`` is written."""
    nodes, heads, width = x.shape
    zero, tilt = x.dtype.type(0), x.dtype.type(slope)
    paired = pair.shape[0] > 0
    for i in range(nodes):
        if loops:
            for h in range(heads):
                part = own_share[i, h]
                for c in range(width):
                    dx[i, h, c] += part * grad[i, h, c]
                value = part * _towards(grad[i, h], x[i, h], out[i, h], zero)
                if not _score(pair, own, i, i, i, h, zero) > 0:
                    value *= tilt
                down[i, h] = value
                if paired:
                    dpair[h, i, 0] += value
                    dpair[h, i, 1] += value
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            for h in range(heads):
                part = share[e, h]  # zero of an edge that is a loop, and all that follows
                for c in range(width):
                    dx[j, h, c] += part * grad[i, h, c]
                value = part * _towards(grad[i, h], x[j, h], out[i, h], zero)
                if not _score(pair, edge, e, j, i, h, zero) > 0:
                    value *= tilt
                dedge[e, h] = value
                if paired:
                    dpair[h, j, 0] += value
                    dpair[h, i, 1] += value
