"""``batch_norm`` in Triton: partial statistics over chunks of rows, then everything else at once.

Two launches per direction. The first computes every chunk's mean and squared deviations (or
gradient sums). Each program of the second loads them all as one tile (at most
:data:`MAX_PARTIALS`), merges them in the same order as a tree reduction (Chan, Golub and LeVeque
1983), so neither an atomic addition nor a third launch is needed, and writes its chunk of the
result, ReLU and residual sum included. Running statistics are updated in the same launches.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.batch_norm.op import BACKWARD, BATCH_NORM
from staticgraph.kernels.launch import Launch, read, tile, wide, wide_like, write

ROWS = 32
COLUMNS = 64
MAX_PARTIALS = 64


@triton.jit
def own_columns(width, COLUMNS: tl.constexpr):
    """Returns the chunk of rows of the program, its columns, and which of them exist."""
    f = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return tl.program_id(0).to(tl.int64), f, f < width


@triton.jit
def passed(part, value, scale, shift, relu: tl.constexpr):
    """Returns the gradients of those values that ReLU, where there is one, let through."""
    if relu:
        part = tl.where(value * scale[None, :] + shift[None, :] <= 0, 0, part)
    return part


@triton.jit
def affine(weight, bias, mean, var, eps, f, inside, WIDE: tl.constexpr):
    """Returns by what a norm multiplies columns ``f``, and what it then adds."""
    scale = read(weight + f, inside, WIDE) / tl.sqrt(var + eps)
    return scale, read(bias + f, inside, WIDE) - mean * scale


@triton.jit
def move(running, f, value, share, inside):
    """Moves running statistics of columns ``f`` by a share of the way to those of a batch."""
    old = tl.load(running + f, mask=inside).to(value.dtype)
    write(running + f, old + share * (value - old), inside)


@triton.jit
def batch_norm_statistics(
    x,
    addend,
    total,
    count,
    partial,
    tracked,
    width: tl.constexpr,
    rows_a_chunk,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: mean and squared deviations of a chunk of rows, for a block of columns.

    With an addend, it also writes the sum, and the statistics are those of the sum as rounded.
    """
    chunk, f, inside = own_columns(width, COLUMNS)
    real = tl.load(count)
    if tracked is not None:  # noqa: SIM102 (one is known at compile time, the other is not)
        # Here, not in the second launch, all of whose programs read the count.
        if (chunk == 0) & (tl.program_id(1) == 0) & (real > 1):
            tl.store(tracked, tl.load(tracked) + 1)
    first = chunk * rows_a_chunk
    last = tl.minimum(first + rows_a_chunk, real)
    mean = tl.zeros([COLUMNS], WIDE)
    square = tl.zeros([COLUMNS], WIDE)
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        rows = read(x + at, here, WIDE)
        if addend is not None:
            rows += read(addend + at, here, WIDE)
            rounded = rows.to(total.dtype.element_ty)
            tl.store(total + at, rounded, mask=here)
            rows = rounded.to(WIDE)
        length = tl.minimum(last - start, ROWS).to(WIDE)
        centre = tl.sum(rows, 0) / length
        away = tl.where(here, rows - centre[None, :], 0)
        done = (start - first).to(WIDE)
        step = centre - mean
        share = length / (done + length)
        square += tl.sum(away * away, 0) + step * step * done * share
        mean += step * share
    tl.store(partial + (2 * chunk) * width + f, mean, mask=inside)
    tl.store(partial + (2 * chunk + 1) * width + f, square, mask=inside)


@triton.jit
def batch_norm_apply(
    summed,
    residual,
    weight,
    bias,
    count,
    partial,
    out,
    mean_out,
    var_out,
    running_mean,
    running_var,
    tracked,
    eps: tl.constexpr,
    momentum: tl.constexpr,
    rows,
    width: tl.constexpr,
    rows_a_chunk,
    relu: tl.constexpr,
    WIDE: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the results of a chunk of rows for a block of columns, from every chunk's
    statistics.

    The first chunk's program also stores mean and variance and updates the running statistics.
    """
    chunk, f, inside = own_columns(width, COLUMNS)
    real = tl.load(count)
    # All chunks at once: a loop over them would pay one memory latency per chunk.
    k = tl.arange(0, CHUNKS)
    lengths = tl.minimum(tl.maximum(real - k * rows_a_chunk, 0), rows_a_chunk)
    lengths = lengths.to(WIDE)[:, None]
    joined = partial + (2 * k)[:, None] * width + f[None, :]
    mask = (lengths > 0) & inside[None, :]
    centre = tl.load(joined, mask=mask, other=0)
    mean = tl.sum(lengths * centre, 0) / tl.maximum(real, 1).to(WIDE)
    step = tl.where(mask, centre - mean[None, :], 0)
    square = tl.sum(tl.load(joined + width, mask=mask, other=0) + lengths * step * step, 0)
    var = square / tl.maximum(real, 1).to(WIDE)
    if chunk == 0:
        tl.store(mean_out + f, mean, mask=inside)
        tl.store(var_out + f, var, mask=inside)
        if tracked is not None:  # noqa: SIM102
            if real > 1:  # the variance of a single row is meaningless
                share = momentum
                if momentum is None:
                    share = 1.0 / tl.load(tracked).to(WIDE)
                unbias = real.to(WIDE) / tl.maximum(real - 1, 1).to(WIDE)
                move(running_mean, f, mean, share, inside)
                move(running_var, f, var * unbias, share, inside)
    scale, shift = affine(weight, bias, mean, var, eps, f, inside, WIDE)
    first = chunk * rows_a_chunk
    last = tl.minimum(first + rows_a_chunk, rows)
    for start in range(first, last, ROWS):
        r, at, here = tile(start, last, f, width, ROWS)
        value = read(summed + at, here, WIDE) * scale[None, :] + shift[None, :]
        if relu:
            value = tl.where(value <= 0, 0, value)
        value = tl.where((r < real)[:, None], value, 0)
        if residual is not None:
            value += read(residual + at, here, WIDE)
        write(out + at, value, here)


@triton.jit
def batch_norm_gradient_sums(
    grad,
    x,
    weight,
    bias,
    mean_in,
    var_in,
    count,
    partial,
    eps: tl.constexpr,
    width: tl.constexpr,
    rows_a_chunk,
    relu: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: sums of the gradient, and of its product with the deviations, over a chunk of
    rows for a block of columns."""
    chunk, f, inside = own_columns(width, COLUMNS)
    mean = tl.load(mean_in + f, mask=inside, other=0)
    var = tl.load(var_in + f, mask=inside, other=0)
    scale, shift = affine(weight, bias, mean, var, eps, f, inside, WIDE)
    first = chunk * rows_a_chunk
    last = tl.minimum(first + rows_a_chunk, tl.load(count))
    sums = tl.zeros([COLUMNS], WIDE)
    products = tl.zeros([COLUMNS], WIDE)
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        value = read(x + at, here, WIDE)
        part = passed(read(grad + at, here, WIDE), value, scale, shift, relu)
        sums += tl.sum(part, 0)
        products += tl.sum(tl.where(here, part * (value - mean[None, :]), 0), 0)
    tl.store(partial + (2 * chunk) * width + f, sums, mask=inside)
    tl.store(partial + (2 * chunk + 1) * width + f, products, mask=inside)


@triton.jit
def batch_norm_apply_gradient(
    grad,
    x,
    weight,
    bias,
    mean_in,
    var_in,
    count,
    partial,
    dx,
    dweight,
    dbias,
    eps: tl.constexpr,
    rows,
    width: tl.constexpr,
    chunks,
    rows_a_chunk,
    relu: tl.constexpr,
    WIDE: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the input gradient of a chunk of rows for a block of columns, from every chunk's
    sums.

    The first chunk's program also writes the gradients of weight and bias.
    """
    chunk, f, inside = own_columns(width, COLUMNS)
    mean = tl.load(mean_in + f, mask=inside, other=0)
    var = tl.load(var_in + f, mask=inside, other=0)
    inverse = 1 / tl.sqrt(var + eps)
    scale, shift = affine(weight, bias, mean, var, eps, f, inside, WIDE)
    k = tl.arange(0, CHUNKS)
    joined = partial + (2 * k)[:, None] * width + f[None, :]
    mask = (k < chunks)[:, None] & inside[None, :]
    sums = tl.sum(tl.load(joined, mask=mask, other=0), 0)
    products = tl.sum(tl.load(joined + width, mask=mask, other=0), 0)
    if chunk == 0:
        write(dbias + f, sums, inside)
        write(dweight + f, (products * inverse), inside)
    real = tl.load(count)
    n = tl.maximum(real, 1).to(WIDE)
    share = sums / n
    slope = products * inverse * inverse / n
    first = chunk * rows_a_chunk
    last = tl.minimum(first + rows_a_chunk, rows)
    for start in range(first, last, ROWS):
        r, at, here = tile(start, last, f, width, ROWS)
        value = read(x + at, here, WIDE)
        part = passed(read(grad + at, here, WIDE), value, scale, shift, relu)
        away = value - mean[None, :]
        part = scale[None, :] * (part - share[None, :] - slope[None, :] * away)
        part = tl.where((r < real)[:, None], part, 0)
        write(dx + at, part, here)


def _chunks(x: Tensor) -> dict[str, Any]:
    rows, width = x.shape
    rows_a_chunk = triton.cdiv(triton.cdiv(max(rows, 1), MAX_PARTIALS), ROWS) * ROWS
    chunks = triton.cdiv(max(rows, 1), rows_a_chunk)
    return {
        "grid": (chunks, triton.cdiv(width, COLUMNS)),
        "rows": rows,
        "width": width,
        "chunks": chunks,
        "rows_a_chunk": rows_a_chunk,
        "partial": wide_like(x, chunks, 2, width),
        "WIDE": wide(x.dtype),
        "CHUNKS": triton.next_power_of_2(chunks),
        "ROWS": ROWS,
        "COLUMNS": COLUMNS,
        "num_warps": 4,
    }


def _options(x: Tensor, addend: Tensor | None, total: Tensor) -> dict[str, Any]:
    return {"summed": x if addend is None else total, **_chunks(x)}


def _backward_options(grad: Tensor, x: Tensor) -> dict[str, Any]:
    return {"grad": grad.contiguous(), **_chunks(x)}


# Padding rows of the sum ``x + addend`` are neither written nor read later.
forward: Callable[..., Any] = Launch(
    batch_norm_statistics, batch_norm_apply, options=_options
).over(BATCH_NORM)
backward: Callable[..., Any] = Launch(
    batch_norm_gradient_sums, batch_norm_apply_gradient, options=_backward_options
).over(BACKWARD)
