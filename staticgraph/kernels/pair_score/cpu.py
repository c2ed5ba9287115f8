"""``pair_score`` on one core: one loop over destinations per direction, nothing of size
``[E, H * C]``.

``edge`` and ``own`` are empty if not given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import inlined, kernel
from staticgraph.kernels.lanes import total
from staticgraph.store.columns import Array


@inlined
def _weighed(
    left: Array,
    j: int,
    right: Array,
    i: int,
    more: Array,
    r: int,
    weight: Array,
    slope: Any,
    zero: Any,
    value: Array,
) -> None:
    """Writes ``weight * leaky_relu(left[j] + right[i] + more[r])``, all heads in one row.

    It is a single loop that can be vectorised, which makes it ten times as fast.
    """
    for f in range(len(value)):
        part = left[j, f] + right[i, f] + more[r, f]
        value[f] = weight[f] * (part if part > zero else slope * part)


@inlined
def _summed(value: Array, sums: Array, row: int) -> None:
    """Sums the columns of each head."""
    heads = sums.shape[1]
    width = len(value) // heads
    for h in range(heads):
        sums[row, h] = total(value, h * width, width)


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
    """Runs forward; writes every element of ``score [E, H]`` and ``loop [N, H]``."""
    nodes, heads, width = left.shape
    zero, tilt = left.dtype.type(0), left.dtype.type(slope)
    edged, owned, columns = len(edge) > 0, len(own) > 0, heads * width
    lefts, rights = left.reshape(nodes, columns), right.reshape(nodes, columns)
    weights, value = weight.reshape(columns), np.empty(columns, left.dtype)
    nothing = np.zeros((1, columns), left.dtype)
    edges = edge.reshape(len(edge), columns) if edged else nothing
    owns = own.reshape(len(own), columns) if owned else nothing
    for i in range(nodes):
        r = i if owned else 0
        _weighed(lefts, i, rights, i, owns, r, weights, tilt, zero, value)
        _summed(value, loop, i)
        for e in range(row_ptr[i], row_ptr[i + 1]):
            r = e if edged else 0
            _weighed(lefts, src[e], rights, i, edges, r, weights, tilt, zero, value)
            _summed(value, score, e)


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
    """Runs backward.

    ``dleft``, ``dright`` and ``dweight`` must be zeroed; every element of the others is written.
    """
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
