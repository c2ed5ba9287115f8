"""``segment_max`` in Triton: one program a segment, rows in blocks, no atomic operation."""

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
    strange = tl.zeros([BLOCK], tl.int32)  # NaN, which a maximum of hardware drops
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        rows = tl.load(values + r[:, None] * width + f[None, :], mask=here, other=-float("inf"))
        rows = rows.to(WIDE)
        strange = tl.maximum(strange, tl.max((rows != rows).to(tl.int32), 0))
        best = tl.maximum(best, tl.max(rows, 0))
    best = tl.where(strange > 0, float("nan"), best)
    best = tl.where(last > first, best, 0)
    tl.store(out + s * width + f, best.to(out.dtype.element_ty), mask=f < width)


@triton.jit
def backward_kernel(
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
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first = tl.load(ptr + s).to(tl.int64)
    last = tl.load(ptr + s + 1).to(tl.int64)
    best = tl.load(out + s * width + f, mask=f < width, other=0).to(WIDE)
    count = tl.where(best == 0, 1, 0).to(WIDE)
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        rows = tl.load(values + r[:, None] * width + f[None, :], mask=here, other=0).to(WIDE)
        count += tl.sum((here & (rows == best[None, :])).to(WIDE), 0)
    share = tl.load(grad + s * width + f, mask=f < width, other=0).to(WIDE) / count
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        at = r[:, None] * width + f[None, :]
        rows = tl.load(values + at, mask=here, other=0).to(WIDE)
        part = share[None, :] * (rows == best[None, :]).to(WIDE)
        tl.store(dvalues + at, part.to(dvalues.dtype.element_ty), mask=here)


def forward(values: Tensor, ptr: Tensor) -> Tensor:
    """As the operator; one launch."""
    out = values.new_empty(len(ptr) - 1, values.size(1))
    forward_kernel[(len(out),)](values, ptr, out, values.size(1), **_options(values))
    return out


def backward(grad: Tensor, values: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    """As the operator; one launch."""
    dvalues = torch.empty_like(values)
    backward_kernel[(len(out),)](
        grad, values, out, ptr, dvalues, values.size(1), **_options(values)
    )
    return dvalues


def _options(value: Tensor) -> dict[str, object]:
    columns = block(value.size(1))
    return {
        "WIDE": wide(value.dtype),
        "ROWS": ROWS,
        "BLOCK": columns,
        "num_warps": warps(ROWS * columns),
    }
