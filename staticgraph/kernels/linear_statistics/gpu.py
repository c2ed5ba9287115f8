"""``linear_statistics`` in Triton: the product of :mod:`staticgraph.kernels.linear.small`, plus the
statistics of each tile while it is in registers.

A program holds one whole tile of rows. More rows make tiles taller, not more numerous, so the norm
merges no more of them than it has chunks (:mod:`staticgraph.kernels.batch_norm.partials`).
Statistics are of the rounded values, so they describe exactly what the norm normalises, and a
column's two numbers are written by the one program that computes them: no atomic addition.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.batch_norm.partials import partials_of, rows_a_partial
from staticgraph.kernels.launch import wide_like
from staticgraph.kernels.linear.limits import FLOATS
from staticgraph.kernels.linear.small import COLUMNS, STEP, forward_tile


@triton.jit
def linear_statistics_forward(
    x,
    weight,
    bias,
    count,
    out,
    partial,
    rows,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    BIASED: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """One program: a tile of the output, rows by columns, and mean and squared deviations of its
    real rows."""
    tile = tl.program_id(0).to(tl.int64)
    r = tile * ROWS + tl.arange(0, ROWS)
    o = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    written = forward_tile(
        x, weight, bias, out, r, o, rows, WIDTH, OUT, BIASED, RELU, ROWS, COLUMNS, STEP
    )
    real = tl.minimum(tl.load(count), rows)
    given = (r < real)[:, None]
    found = tl.minimum(tl.maximum(real - tile * ROWS, 1), ROWS).to(tl.float32)
    value = tl.where(given, written.to(tl.float32), 0)
    mean = tl.sum(value, 0) / found
    away = tl.where(given, value - mean[None, :], 0)
    at = partial + 2 * tile * OUT + o
    tl.store(at, mean, mask=o < OUT)
    tl.store(at + OUT, tl.sum(away * away, 0), mask=o < OUT)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, count: Tensor, relu: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Runs the operator in one launch.

    Raises:
        ValueError: a dtype is float64, which this product does not support.
    """
    if not FLOATS.issuperset({x.dtype, weight.dtype, dtype}):
        raise ValueError(
            f"linear_statistics of {x.dtype} and {weight.dtype} in {dtype} on CUDA: its sums are "
            "float32; use linear, and batch_norm without partial statistics"
        )
    rows, (high, width) = x.size(0), weight.shape
    tile, tiles = rows_a_partial(rows), partials_of(rows)
    out = x.new_empty(rows, high, dtype=dtype)
    partial = wide_like(x, tiles, 2, high)
    linear_statistics_forward[(tiles, triton.cdiv(high, COLUMNS))](
        x,
        weight,
        weight if bias is None else bias,
        count,
        out,
        partial,
        rows,
        width,
        high,
        BIASED=bias is not None,
        RELU=relu,
        ROWS=tile,
        COLUMNS=COLUMNS,
        # Smaller steps for the tallest tile: three blocks fit a multiprocessor's registers, not
        # two.
        STEP=STEP if tile > 64 else STEP * 4 // dtype.itemsize,
        num_warps=8 if tile > 64 else 4,
        num_stages=2,
    )
    return out, partial
