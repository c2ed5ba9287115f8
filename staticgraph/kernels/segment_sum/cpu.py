"""``segment_sum`` on one core: rows of a segment stand together, so one pass each way is enough."""

from __future__ import annotations

from staticgraph.kernels.jit import kernel
from staticgraph.store.columns import Array


@kernel
def forward(values: Array, ptr: Array, mean: bool, out: Array) -> None:
    """Every element of ``out`` is written."""
    width = values.shape[1]
    one = values.dtype.type(1)
    for s in range(len(out)):
        to = out[s]
        for f in range(width):
            to[f] = 0
        for r in range(ptr[s], ptr[s + 1]):
            row = values[r]
            for f in range(width):
                to[f] += row[f]
        if mean and ptr[s + 1] - ptr[s] > 1:
            share = one / values.dtype.type(ptr[s + 1] - ptr[s])
            for f in range(width):
                to[f] *= share


@kernel
def backward(grad: Array, ptr: Array, mean: bool, dvalues: Array) -> None:
    """Every element of ``dvalues`` is written: segments cover all rows."""
    width = grad.shape[1]
    one = grad.dtype.type(1)
    for s in range(len(grad)):
        rows = ptr[s + 1] - ptr[s]
        share = one / grad.dtype.type(rows) if mean and rows > 1 else one
        row = grad[s]
        for r in range(ptr[s], ptr[s + 1]):
            to = dvalues[r]
            for f in range(width):
                to[f] = share * row[f]
