"""``pair_score`` on one core: one loop over destinations each way, nothing of size ``[E, H * C]``.

``edge`` and ``own`` are empty where they were not given.
"""

from __future__ import annotations

from typing import Any

from staticgraph.kernels.jit import kernel
from staticgraph.store.columns import Array


@kernel
def _product(one: Array, other: Array, more: Array, weight: Array, slope: Any, zero: Any) -> Any:
    """``weight . leaky_relu(one + other + more)``, in four sums side by side."""
    width, extra = len(one), len(more) > 0
    a = b = c = d = zero
    whole = width - width % 4
    for k in range(0, whole, 4):
        p, q = one[k] + other[k], one[k + 1] + other[k + 1]
        r, s = one[k + 2] + other[k + 2], one[k + 3] + other[k + 3]
        if extra:
            p, q, r, s = p + more[k], q + more[k + 1], r + more[k + 2], s + more[k + 3]
        a += weight[k] * (p if p > 0 else slope * p)
        b += weight[k + 1] * (q if q > 0 else slope * q)
        c += weight[k + 2] * (r if r > 0 else slope * r)
        d += weight[k + 3] * (s if s > 0 else slope * s)
    for k in range(whole, width):
        p = one[k] + other[k]
        if extra:
            p += more[k]
        a += weight[k] * (p if p > 0 else slope * p)
    return (a + b) + (c + d)


@kernel
def forward(
    left: Array,
    right: Array,
    weight: Array,
    edge: Array,
    own: Array,
    src: Array,
    row_ptr: Array,
    slope: float,
    score: Array,
    loop: Array,
) -> None:
    """Every element of ``score [E, H]`` and ``loop [N, H]`` is written."""
    nodes, heads = loop.shape
    zero, tilt = left.dtype.type(0), left.dtype.type(slope)
    edged, owned = edge.shape[0] > 0, own.shape[0] > 0
    none = left[0, 0, :0]
    for i in range(nodes):
        for h in range(heads):
            more = own[i, h] if owned else none
            loop[i, h] = _product(left[i, h], right[i, h], more, weight[h], tilt, zero)
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            for h in range(heads):
                more = edge[e, h] if edged else none
                score[e, h] = _product(left[j, h], right[i, h], more, weight[h], tilt, zero)


@kernel
def backward(
    grad: Array,
    grad_loop: Array,
    left: Array,
    right: Array,
    weight: Array,
    edge: Array,
    own: Array,
    src: Array,
    row_ptr: Array,
    slope: float,
    dleft: Array,
    dright: Array,
    dweight: Array,
    dedge: Array,
    down: Array,
) -> None:
    """``dleft``, ``dright`` and ``dweight`` come zeroed; the others are written."""
    nodes, heads, width = left.shape
    zero, tilt = left.dtype.type(0), left.dtype.type(slope)
    edged, owned = edge.shape[0] > 0, own.shape[0] > 0
    for i in range(nodes):
        for h in range(heads):
            g = grad_loop[i, h]
            for c in range(width):
                value = left[i, h, c] + right[i, h, c] + (own[i, h, c] if owned else zero)
                dweight[h, c] += g * (value if value > 0 else tilt * value)
                part = g * weight[h, c] if value > 0 else tilt * g * weight[h, c]
                dleft[i, h, c] += part
                dright[i, h, c] += part
                if owned:
                    down[i, h, c] = part
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            for h in range(heads):
                g = grad[e, h]
                for c in range(width):
                    value = left[j, h, c] + right[i, h, c] + (edge[e, h, c] if edged else zero)
                    dweight[h, c] += g * (value if value > 0 else tilt * value)
                    part = g * weight[h, c] if value > 0 else tilt * g * weight[h, c]
                    dleft[j, h, c] += part
                    dright[i, h, c] += part
                    if edged:
                        dedge[e, h, c] = part
