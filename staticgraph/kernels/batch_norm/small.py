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

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.batch_norm.results import gradients, results
from staticgraph.kernels.launch import read, wide, write

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
    ADDED: tl.constexpr,
    RUNNING: tl.constexpr,
    RELU: tl.constexpr,
    JOINED: tl.constexpr,
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
    given = (r < real)[:, None] & inside[None, :]
    at = r[:, None] * width + f[None, :]
    value = read(x + at, given, WIDE)
    if ADDED:
        value += read(addend + at, given, WIDE)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=given)
        value = rounded.to(WIDE)
    n = tl.maximum(real, 1).to(WIDE)
    mean = tl.sum(value, 0) / n
    away = tl.where(given, value - mean[None, :], 0)
    var = tl.sum(away * away, 0) / n
    tl.store(mean_out + f, mean, mask=inside)
    tl.store(var_out + f, var, mask=inside)
    if RUNNING:  # noqa: SIM102 (one is known at compile time, the other is not)
        if real > 1:  # the variance of a single row is meaningless
            if tl.program_id(0) == 0:
                tl.store(tracked, tl.load(tracked) + 1)
            old = tl.load(running_mean + f, mask=inside).to(WIDE)
            new = old + momentum * (mean - old)
            write(running_mean + f, new, inside)
            old = tl.load(running_var + f, mask=inside).to(WIDE)
            unbias = n / tl.maximum(real - 1, 1).to(WIDE)
            new = old + momentum * (var * unbias - old)
            write(running_var + f, new, inside)
    scale = read(weight + f, inside, WIDE) / tl.sqrt(var + eps)
    shift = read(bias + f, inside, WIDE) - mean * scale
    value = value * scale[None, :] + shift[None, :]
    if RELU:
        value = tl.where(value <= 0, 0, value)
    value = tl.where(given, value, 0)
    if JOINED:
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
    into,
    dx,
    dweight,
    dbias,
    both,
    eps: tl.constexpr,
    rows,
    width: tl.constexpr,
    RELU: tl.constexpr,
    INTO: tl.constexpr,
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
    given = (r < real)[:, None] & inside[None, :]
    at = r[:, None] * width + f[None, :]
    value = read(x + at, given, WIDE)
    part = read(grad + at, given, WIDE)
    mean = tl.load(mean_in + f, mask=inside, other=0)
    var = tl.load(var_in + f, mask=inside, other=0)
    inverse = 1 / tl.sqrt(var + eps)
    scale = read(weight + f, inside, WIDE) / tl.sqrt(var + eps)
    if RELU:
        shift = read(bias + f, inside, WIDE) - mean * scale
        part = tl.where(value * scale[None, :] + shift[None, :] <= 0, 0, part)
    away = tl.where(given, value - mean[None, :], 0)
    sums = tl.sum(part, 0)
    products = tl.sum(part * away, 0)
    write(dbias + f, sums, inside)
    write(dweight + f, (products * inverse), inside)
    n = tl.maximum(real, 1).to(WIDE)
    share = sums / n
    slope = products * inverse * inverse / n
    part = scale[None, :] * (part - share[None, :] - slope[None, :] * away)
    part = tl.where(given, part, 0)
    here = (r < rows)[:, None] & inside[None, :]
    write(dx + at, part, here)
    if INTO:
        part += read(into + at, here, WIDE)
        write(both + at, part, here)


def forward(
    x: Tensor,
    addend: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    tracked: Tensor | None,
    momentum: float | None,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs forward in one launch."""
    rows, width = x.shape
    out, mean, var, total = results(x, addend, residual)
    grid, options = _options(x)
    batch_norm_few_rows_forward[grid](
        x,
        x if addend is None else addend,
        x if residual is None else residual,
        weight,
        bias,
        count,
        out,
        total,
        mean,
        var,
        mean if running_mean is None else running_mean,
        var if running_var is None else running_var,
        count if tracked is None else tracked,
        eps,
        0.0 if momentum is None else momentum,
        rows,
        width,
        ADDED=addend is not None,
        RUNNING=tracked is not None,
        RELU=relu,
        JOINED=residual is not None,
        **options,
    )
    return out, mean, var, total


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    into: Tensor | None,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs backward in one launch."""
    rows, width = x.shape
    into = None if into is None else into.contiguous()
    dx, dweight, dbias, both = gradients(x, weight, bias, into)
    grid, options = _options(x)
    given = (grad.contiguous(), x, weight, bias, mean, var, count, x if into is None else into)
    found = (dx, dweight, dbias, dx if into is None else both)
    options["INTO"] = into is not None
    batch_norm_few_rows_backward[grid](*given, *found, eps, rows, width, RELU=relu, **options)
    return dx, dweight, dbias, both


def _options(x: Tensor) -> tuple[tuple[int], dict[str, Any]]:
    rows, columns = triton.next_power_of_2(max(32, len(x))), SECTOR_BYTES // x.element_size()
    options = {"WIDE": wide(x.dtype), "ROWS": rows, "COLUMNS": columns}
    # Sixteen values per thread and operand.
    options["num_warps"] = max(1, min(16, rows * columns // 512))
    return (triton.cdiv(x.size(1), columns),), options
