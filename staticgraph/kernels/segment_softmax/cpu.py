"""``segment_softmax`` on one core."""

from __future__ import annotations

import numpy as np

from staticgraph.kernels.jit import kernel
from staticgraph.store.columns import Array


@kernel
def forward(values: Array, ptr: Array, out: Array) -> None:
    """Every element of ``out`` is written: segments cover all rows."""
    width, zero, one = values.shape[1], values.dtype.type(0), values.dtype.type(1)
    best, total = np.empty(width, values.dtype), np.empty(width, values.dtype)
    for s in range(len(ptr) - 1):
        first, last = ptr[s], ptr[s + 1]
        for f in range(width):
            best[f], total[f] = values.dtype.type(-np.inf), zero
        for r in range(first, last):
            for f in range(width):
                value = values[r, f]
                best[f] = value if value > best[f] or value != value else best[f]
        for r in range(first, last):
            for f in range(width):
                out[r, f] = np.exp(values[r, f] - best[f])
                total[f] += out[r, f]
        for f in range(width):
            total[f] = one / total[f]
        for r in range(first, last):
            for f in range(width):
                out[r, f] *= total[f]


@kernel
def backward(grad: Array, out: Array, ptr: Array, dvalues: Array) -> None:
    """Every element of ``dvalues`` is written."""
    width, zero = grad.shape[1], grad.dtype.type(0)
    mean = np.empty(width, grad.dtype)
    for s in range(len(ptr) - 1):
        for f in range(width):
            mean[f] = zero
        for r in range(ptr[s], ptr[s + 1]):
            for f in range(width):
                mean[f] += grad[r, f] * out[r, f]
        for r in range(ptr[s], ptr[s + 1]):
            for f in range(width):
                dvalues[r, f] = out[r, f] * (grad[r, f] - mean[f])
