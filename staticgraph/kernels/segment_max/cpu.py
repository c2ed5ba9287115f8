"""``segment_max`` on one core: rows of a segment stand together, two passes back."""

from __future__ import annotations

import numpy as np

from staticgraph.kernels.jit import kernel
from staticgraph.store.columns import Array


@kernel
def forward(values: Array, ptr: Array, out: Array) -> None:
    """Every element of ``out`` is written."""
    width = values.shape[1]
    for s in range(len(out)):
        first, last = ptr[s], ptr[s + 1]
        for f in range(width):
            out[s, f] = values[first, f] if last > first else 0
        for r in range(first + 1, last):
            for f in range(width):
                value, best = values[r, f], out[s, f]
                out[s, f] = value if value > best or value != value else best


@kernel
def backward(grad: Array, values: Array, out: Array, ptr: Array, dvalues: Array) -> None:
    """Every element of ``dvalues`` is written: segments cover all rows."""
    width, zero, one = values.shape[1], values.dtype.type(0), values.dtype.type(1)
    share = np.empty(width, values.dtype)
    for s in range(len(out)):
        for f in range(width):
            share[f] = one if out[s, f] == zero else zero
        for r in range(ptr[s], ptr[s + 1]):
            for f in range(width):
                share[f] += one if values[r, f] == out[s, f] else zero
        for f in range(width):
            share[f] = grad[s, f] / share[f]
        for r in range(ptr[s], ptr[s + 1]):
            for f in range(width):
                dvalues[r, f] = share[f] * (one if values[r, f] == out[s, f] else zero)
