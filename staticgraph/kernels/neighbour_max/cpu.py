"""``neighbour_max`` on one core: loops over destinations. ``edge`` is empty if not given."""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import kernel_part
from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers
from staticgraph.store.columns import Array


@kernel_part
def _relu(value: Any, zero: Any) -> Any:
    """Applies ReLU; NaN propagates."""
    return zero if value <= zero else value


@kernel_part
def _largest(x: Array, edge: Array, src: Array, row_ptr: Array, out: Array) -> None:
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


@CpuLoop
def forward(x: Matrix, edge: Matrix, src: Indices, row_ptr: Pointers, out: Matrix) -> None:
    """Runs forward."""
    _largest(x, edge, src, row_ptr, out)


@CpuLoop
def backward(
    grad: Matrix,
    x: Matrix,
    edge: Matrix,
    out: Matrix,
    src: Indices,
    row_ptr: Pointers,
    rounded: bool,
    dx: Matrix,
    dedge: Matrix,
) -> None:
    """Runs backward."""
    width, zero, one, edged = x.shape[1], x.dtype.type(0), x.dtype.type(1), edge.shape[0] > 0
    share = np.empty(width, x.dtype)
    dx[:] = zero
    if rounded and edged:  # the result was, the sums were not
        _largest(x, edge, src, row_ptr, out)
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
