"""``segment_sum`` in Triton: one program a segment, rows in blocks, no atomic addition."""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

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
    MEAN: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first = tl.load(ptr + s)
    last = tl.load(ptr + s + 1)
    total = tl.zeros([BLOCK], WIDE)
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        rows = tl.load(values + r[:, None] * width + f[None, :], mask=here, other=0)
        total += tl.sum(rows.to(WIDE), 0)
    if MEAN:
        total = total / tl.maximum(last - first, 1).to(WIDE)
    tl.store(out + s * width + f, total.to(out.dtype.element_ty), mask=f < width)


@triton.jit
def backward_kernel(
    grad,
    ptr,
    dvalues,
    width: tl.constexpr,
    MEAN: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    s = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    first = tl.load(ptr + s)
    last = tl.load(ptr + s + 1)
    row = tl.load(grad + s * width + f, mask=f < width, other=0).to(WIDE)
    if MEAN:
        row = row / tl.maximum(last - first, 1).to(WIDE)
    rows = tl.zeros([ROWS, BLOCK], WIDE) + row[None, :]
    for start in range(first, last, ROWS):
        r = start + tl.arange(0, ROWS)
        here = (r < last)[:, None] & (f < width)[None, :]
        at = dvalues + r[:, None] * width + f[None, :]
        tl.store(at, rows.to(dvalues.dtype.element_ty), mask=here)


def forward(values: Tensor, ptr: Tensor, mean: bool) -> Tensor:
    """As the operator; one launch."""
    out = values.new_empty(len(ptr) - 1, values.size(1))
    forward_kernel[(len(out),)](values, ptr, out, values.size(1), MEAN=mean, **_options(values))
    return out


def backward(grad: Tensor, ptr: Tensor, rows: int, mean: bool) -> Tensor:
    """As the operator; one launch."""
    dvalues = grad.new_empty(rows, grad.size(1))
    backward_kernel[(len(grad),)](
        grad.contiguous(), ptr, dvalues, grad.size(1), MEAN=mean, **_options(grad)
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
