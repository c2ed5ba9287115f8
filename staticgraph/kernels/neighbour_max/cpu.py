"""``neighbour_max`` on one core: destination by destination, nothing of size ``[E, F]`` in between.

``edge`` is empty if messages are the rows themselves; otherwise a message is the ReLU of row plus
edge. Backward scatters as it goes: on one core the order of additions is fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import kernel, kernel_part
from staticgraph.store.columns import Array


@kernel_part
def _relu(value: Any, zero: Any) -> Any:
    """Applies ReLU; NaN propagates."""
    return zero if value <= zero else value


@kernel
def forward(x: Array, edge: Array, src: Array, row_ptr: Array, out: Array) -> None:
    """Runs forward; writes every element of ``out``."""
    width, zero, edged = x.shape[1], x.dtype.type(0), edge.shape[0] > 0
    for i in range(len(x)):
        first, last = row_ptr[i], row_ptr[i + 1]
        if last == first:
            for f in range(width):
                out[i, f] = zero
        for e in range(first, last):
            j = src[e]
            for f in range(width):
                value = _relu(x[j, f] + edge[e, f], zero) if edged else x[j, f]
                best = out[i, f]
                out[i, f] = value if e == first or value > best or value != value else best


@kernel
def backward(
    grad: Array,
    x: Array,
    edge: Array,
    out: Array,
    src: Array,
    row_ptr: Array,
    dx: Array,
    dedge: Array,
) -> None:
    """Runs backward; ``dx`` must be zeroed, and every element of ``dedge`` is written."""
    width, zero, one, edged = x.shape[1], x.dtype.type(0), x.dtype.type(1), edge.shape[0] > 0
    share = np.empty(width, x.dtype)
    for i in range(len(x)):
        for f in range(width):
            share[f] = one if out[i, f] == zero else zero
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            for f in range(width):
                value = _relu(x[j, f] + edge[e, f], zero) if edged else x[j, f]
                share[f] += one if value == out[i, f] else zero
        for f in range(width):
            share[f] = grad[i, f] / share[f]
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            if edged:
                for f in range(width):
                    value = x[j, f] + edge[e, f]
                    chosen = value > zero and value == out[i, f]
                    part = share[f] * (one if chosen else zero)
                    dx[j, f] += part
                    dedge[e, f] = part
            else:
                for f in range(width):
                    dx[j, f] += share[f] * (one if x[j, f] == out[i, f] else zero)
