"""``segment_softmax`` in Triton: one program a segment, rows in blocks, no atomic operation."""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import block, warps, wide

ROWS = 16


@triton.jit
def forward_kernel(
    values,
    ptr,
    out,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first = tl.load(ptr + s).to(tl.int64)
    last = tl.load(ptr + s + 1).to(tl.int64)
    best = tl.zeros([BLOCK], WIDE) - float("inf")
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        rows = tl.load(values + r[:, None] * width + f[None, :], mask=here, other=-float("inf"))
        best = tl.maximum(best, tl.max(rows.to(WIDE), 0))
    total = tl.zeros([BLOCK], WIDE)
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        rows = tl.load(values + r[:, None] * width + f[None, :], mask=here, other=0).to(WIDE)
        total += tl.sum(tl.where(here, tl.exp(rows - best[None, :]), 0), 0)
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        at = r[:, None] * width + f[None, :]
        rows = tl.load(values + at, mask=here, other=0).to(WIDE)
        rows = tl.exp(rows - best[None, :]) / total[None, :]
        tl.store(out + at, rows.to(out.dtype.element_ty), mask=here)


@triton.jit
def backward_kernel(
    grad,
    out,
    ptr,
    dvalues,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first = tl.load(ptr + s).to(tl.int64)
    last = tl.load(ptr + s + 1).to(tl.int64)
    mean = tl.zeros([BLOCK], WIDE)
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        at = r[:, None] * width + f[None, :]
        g = tl.load(grad + at, mask=here, other=0).to(WIDE)
        mean += tl.sum(g * tl.load(out + at, mask=here, other=0).to(WIDE), 0)
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        at = r[:, None] * width + f[None, :]
        g = tl.load(grad + at, mask=here, other=0).to(WIDE)
        rows = tl.load(out + at, mask=here, other=0).to(WIDE) * (g - mean[None, :])
        tl.store(dvalues + at, rows.to(dvalues.dtype.element_ty), mask=here)


def forward(values: Tensor, ptr: Tensor) -> Tensor:
    """As the operator; one launch."""
    out = torch.empty_like(values)
    forward_kernel[(len(ptr) - 1,)](values, ptr, out, values.size(1), **_options(values))
    return out


def backward(grad: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    """As the operator; one launch."""
    dvalues = torch.empty_like(out)
    backward_kernel[(len(ptr) - 1,)](grad, out, ptr, dvalues, out.size(1), **_options(out))
    return dvalues


def _options(value: Tensor) -> dict[str, object]:
    columns = block(value.size(1))
    return {
        "WIDE": wide(value.dtype),
        "ROWS": ROWS,
        "BLOCK": columns,
        "num_warps": warps(ROWS * columns),
    }
