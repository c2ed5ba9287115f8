"""``batch_norm`` of few rows in Triton, in one launch per direction: a program holds all rows of a
few columns.

The problem: for a few hundred rows, two launches cost more than the norm itself. Here a program
loads all rows of its columns exactly once, computes the statistics from registers, and writes the
result. The formulas are those of :mod:`staticgraph.kernels.batch_norm.gpu`, which handles more
rows, and running statistics with a cumulative average, whose count every program reads.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.batch_norm import gpu
from staticgraph.kernels.batch_norm.gpu import affine, move, passed
from staticgraph.kernels.batch_norm.op import BACKWARD, BATCH_NORM, launches
from staticgraph.kernels.launch import Launch, read, wide, write

# The least that a load from memory transfers, per row.
SECTOR_BYTES = 32


@triton.jit
def batch_norm_few_rows_forward(
    x,
    addend,
    residual,
    weight,
    bias,
    count,
    out,
    total,
    mean_out,
    var_out,
    running_mean,
    running_var,
    tracked,
    eps: tl.constexpr,
    momentum: tl.constexpr,
    rows,
    width: tl.constexpr,
    relu: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: statistics, running statistics and results of a block of columns, all rows at
    once."""
    f = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    r = tl.arange(0, ROWS)
    inside = f < width
    real = tl.load(count)
    here = (r < rows)[:, None] & inside[None, :]
    real_mask = (r < real)[:, None] & inside[None, :]
    at = r[:, None] * width + f[None, :]
    value = read(x + at, real_mask, WIDE)
    if addend is not None:
        value += read(addend + at, real_mask, WIDE)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=real_mask)
        value = rounded.to(WIDE)
    n = tl.maximum(real, 1).to(WIDE)
    mean = tl.sum(value, 0) / n
    away = tl.where(real_mask, value - mean[None, :], 0)
    var = tl.sum(away * away, 0) / n
    tl.store(mean_out + f, mean, mask=inside)
    tl.store(var_out + f, var, mask=inside)
    if tracked is not None:  # noqa: SIM102 (one is known at compile time, the other is not)
        if real > 1:  # the variance of a single row is meaningless
            if tl.program_id(0) == 0:
                tl.store(tracked, tl.load(tracked) + 1)
            unbias = n / tl.maximum(real - 1, 1).to(WIDE)
            move(running_mean, f, mean, momentum, inside)
            move(running_var, f, var * unbias, momentum, inside)
    scale, shift = affine(weight, bias, mean, var, eps, f, inside, WIDE)
    value = value * scale[None, :] + shift[None, :]
    if relu:
        value = tl.where(value <= 0, 0, value)
    value = tl.where(real_mask, value, 0)
    if residual is not None:
        value += read(residual + at, here, WIDE)
    write(out + at, value, here)


@triton.jit
def batch_norm_few_rows_backward(
    grad,
    x,
    weight,
    bias,
    mean_in,
    var_in,
    count,
    dx,
    dweight,
    dbias,
    eps: tl.constexpr,
    rows,
    width: tl.constexpr,
    relu: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the gradients of input, weight and bias for a block of columns, all rows at
    once."""
    f = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    r = tl.arange(0, ROWS)
    inside = f < width
    real = tl.load(count)
    real_mask = (r < real)[:, None] & inside[None, :]
    at = r[:, None] * width + f[None, :]
    value = read(x + at, real_mask, WIDE)
    mean = tl.load(mean_in + f, mask=inside, other=0)
    var = tl.load(var_in + f, mask=inside, other=0)
    inverse = 1 / tl.sqrt(var + eps)
    scale, shift = affine(weight, bias, mean, var, eps, f, inside, WIDE)
    part = passed(read(grad + at, real_mask, WIDE), value, scale, shift, relu)
    away = tl.where(real_mask, value - mean[None, :], 0)
    sums = tl.sum(part, 0)
    products = tl.sum(part * away, 0)
    write(dbias + f, sums, inside)
    write(dweight + f, (products * inverse), inside)
    n = tl.maximum(real, 1).to(WIDE)
    share = sums / n
    slope = products * inverse * inverse / n
    part = scale[None, :] * (part - share[None, :] - slope[None, :] * away)
    part = tl.where(real_mask, part, 0)
    here = (r < rows)[:, None] & inside[None, :]
    write(dx + at, part, here)


def _options(x: Tensor) -> dict[str, Any]:
    count, width = x.shape
    rows, columns = triton.next_power_of_2(max(32, count)), SECTOR_BYTES // x.element_size()
    return {
        "grid": (triton.cdiv(width, columns),),
        "rows": count,
        "width": width,
        "WIDE": wide(x.dtype),
        "ROWS": rows,
        "COLUMNS": columns,
        # Sixteen values per thread and operand.
        "num_warps": max(1, min(16, rows * columns // 512)),
    }


def _backward_options(grad: Tensor, x: Tensor) -> dict[str, Any]:
    return {"grad": grad.contiguous(), **_options(x)}


forward: Callable[..., Any] = Launch(batch_norm_few_rows_forward, options=_options).over(BATCH_NORM)
backward: Callable[..., Any] = Launch(batch_norm_few_rows_backward, options=_backward_options).over(
    BACKWARD
)


def on_cuda(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Runs forward by these kernels or, with more rows or a cumulative average, the others."""
    *_, tracked, momentum, _, _ = rest
    few = launches(x, tracked is not None and momentum is None) == 1
    return (forward if few else gpu.forward)(x, *rest)


def backward_on_cuda(grad: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Runs backward by these kernels or, with more rows, the others."""
    return (backward if launches(x, False) == 1 else gpu.backward)(grad, x, *rest)
