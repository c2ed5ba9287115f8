"""Segment reductions in Triton: one program per segment, rows in blocks, no atomics."""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import Launch, by_row, read, span, tile, write

ROWS = 16


@triton.jit
def segment_sum_forward(
    values,
    ptr,
    out,
    width: tl.constexpr,
    mean: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the sum or mean of segment ``s``."""
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first, last = span(ptr, s)
    total = tl.zeros([BLOCK], WIDE)
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        total += tl.sum(read(values + at, here, WIDE), 0)
    if mean:
        total = total / tl.maximum(last - first, 1).to(WIDE)
    write(out + s * width + f, total, f < width)


@triton.jit
def segment_sum_backward(
    grad,
    ptr,
    dvalues,
    width: tl.constexpr,
    mean: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradients of segment ``s``'s rows, which are all equal."""
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first, last = span(ptr, s)
    row = read(grad + s * width + f, f < width, WIDE)
    if mean:
        row = row / tl.maximum(last - first, 1).to(WIDE)
    rows = tl.zeros([ROWS, BLOCK], WIDE) + row[None, :]
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        write(dvalues + at, rows, here)


@triton.jit
def segment_max_forward(
    values,
    ptr,
    out,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the maximum per column of segment ``s``; NaN if any value is, 0 for an empty
    segment."""
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first, last = span(ptr, s)
    best = tl.zeros([BLOCK], WIDE) - float("inf")
    strange = tl.zeros([BLOCK], tl.int32)  # columns with a NaN, which tl.max drops
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        rows = tl.load(values + at, mask=here, other=-float("inf"))
        rows = rows.to(WIDE)
        strange = tl.maximum(strange, tl.max((rows != rows).to(tl.int32), 0))
        best = tl.maximum(best, tl.max(rows, 0))
    best = tl.where(strange > 0, float("nan"), best)
    best = tl.where(last > first, best, 0)
    write(out + s * width + f, best, f < width)


@triton.jit
def segment_max_backward(
    grad,
    values,
    out,
    ptr,
    dvalues,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradients of segment ``s``'s rows, divided evenly among tied maxima."""
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first, last = span(ptr, s)
    best = read(out + s * width + f, f < width, WIDE)
    count = tl.where(best == 0, 1, 0).to(WIDE)
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        rows = read(values + at, here, WIDE)
        count += tl.sum((here & (rows == best[None, :])).to(WIDE), 0)
    share = read(grad + s * width + f, f < width, WIDE) / count
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        rows = read(values + at, here, WIDE)
        part = share[None, :] * (rows == best[None, :]).to(WIDE)
        write(dvalues + at, part, here)


@triton.jit
def segment_softmax_forward(
    values,
    ptr,
    out,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the softmax over the rows of segment ``s``, column by column."""
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first, last = span(ptr, s)
    best = tl.zeros([BLOCK], WIDE) - float("inf")
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        rows = tl.load(values + at, mask=here, other=-float("inf"))
        best = tl.maximum(best, tl.max(rows.to(WIDE), 0))
    total = tl.zeros([BLOCK], WIDE)
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        rows = read(values + at, here, WIDE)
        total += tl.sum(tl.where(here, tl.exp(rows - best[None, :]), 0), 0)
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        rows = read(values + at, here, WIDE)
        rows = tl.exp(rows - best[None, :]) / total[None, :]
        write(out + at, rows, here)


@triton.jit
def segment_softmax_backward(
    grad,
    out,
    ptr,
    dvalues,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradients of segment ``s``'s rows."""
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first, last = span(ptr, s)
    mean = tl.zeros([BLOCK], WIDE)
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        g = read(grad + at, here, WIDE)
        mean += tl.sum(g * read(out + at, here, WIDE), 0)
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        g = read(grad + at, here, WIDE)
        rows = read(out + at, here, WIDE) * (g - mean[None, :])
        write(dvalues + at, rows, here)


def _by_out(ptr: Tensor, out: Tensor) -> dict[str, Any]:
    return {"grid": (len(ptr) - 1,), "ROWS": ROWS, **by_row(out.dtype, out.size(1), ROWS)}


def _by_grad(ptr: Tensor, grad: Tensor) -> dict[str, Any]:
    return _by_out(ptr, grad)


sum_forward: Launch = Launch(segment_sum_forward, options=_by_out)
sum_backward: Launch = Launch(segment_sum_backward, options=_by_grad)
max_forward: Launch = Launch(segment_max_forward, options=_by_out)
max_backward: Launch = Launch(segment_max_backward, options=_by_grad)
softmax_forward: Launch = Launch(segment_softmax_forward, options=_by_out)
softmax_backward: Launch = Launch(segment_softmax_backward, options=_by_grad)
