"""Segment reductions on one core: the rows of a segment are contiguous, so one or two passes per
direction suffice."""

from __future__ import annotations

import numpy as np

from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix
from staticgraph.kernels.exponential import exp


@CpuLoop
def sum_forward(values: Matrix, ptr: Indices, mean: bool, out: Matrix) -> None:
    """Computes the sum or mean of each segment; writes every element of ``out``."""
    width = values.shape[1]
    one = values.dtype.type(1)
    for s in range(len(out)):
        for f in range(width):
            out[s, f] = 0
        for r in range(ptr[s], ptr[s + 1]):
            for f in range(width):
                out[s, f] += values[r, f]
        if mean and ptr[s + 1] - ptr[s] > 1:
            share = one / values.dtype.type(ptr[s + 1] - ptr[s])
            for f in range(width):
                out[s, f] *= share


@CpuLoop
def sum_backward(grad: Matrix, ptr: Indices, mean: bool, dvalues: Matrix) -> None:
    """Runs backward through the sum; writes every element of ``dvalues``, since segments cover all
    rows."""
    width = grad.shape[1]
    one = grad.dtype.type(1)
    for s in range(len(grad)):
        rows = ptr[s + 1] - ptr[s]
        share = one / grad.dtype.type(rows) if mean and rows > 1 else one
        for r in range(ptr[s], ptr[s + 1]):
            for f in range(width):
                dvalues[r, f] = share * grad[s, f]


@CpuLoop
def max_forward(values: Matrix, ptr: Indices, out: Matrix) -> None:
    """Computes the maximum of each segment; writes every element of ``out``."""
    width = values.shape[1]
    for s in range(len(out)):
        first, last = ptr[s], ptr[s + 1]
        for f in range(width):
            out[s, f] = values[first, f] if last > first else 0
        for r in range(first + 1, last):
            for f in range(width):
                value, best = values[r, f], out[s, f]
                out[s, f] = value if value > best or value != value else best


@CpuLoop
def max_backward(grad: Matrix, values: Matrix, out: Matrix, ptr: Indices, dvalues: Matrix) -> None:
    """Runs backward through the maximum; writes every element of ``dvalues``, since segments cover
    all rows."""
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


@CpuLoop
def softmax_forward(values: Matrix, ptr: Indices, out: Matrix) -> None:
    """Computes the softmax over each segment; writes every element of ``out``, since segments cover
    all rows."""
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
                out[r, f] = exp(values[r, f] - best[f])
                total[f] += out[r, f]
        for f in range(width):
            total[f] = one / total[f]
        for r in range(first, last):
            for f in range(width):
                out[r, f] *= total[f]


@CpuLoop
def softmax_backward(grad: Matrix, out: Matrix, ptr: Indices, dvalues: Matrix) -> None:
    """Runs backward through the softmax; writes every element of ``dvalues``."""
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
