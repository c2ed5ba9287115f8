"""``table_sum`` in Triton; its backward is a product with a matrix of counts.

Summing gradient rows by table entry normally takes a sort or atomic additions. But the tables are
small, so the matrix that counts how often row ``r`` refers to entry ``v`` can be built block by
block in registers and multiplied with the gradient on the matrix unit: partial sums over chunks of
rows, then their sum in a fixed order. Counts are exact in bfloat16, and a float32 is the sum of
three bfloat16, so these products are exact. At 173 entries (OGB's atoms) and 3,295 rows of 64 that
is 73 megaflop, negligible on a GPU.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import (
    Launch,
    by_row,
    own_row,
    product,
    wide,
    wide_like,
    write,
)

ROWS = 32
ENTRIES = 64
COLUMNS = 64
# How many bfloat16 sum up exactly to a number; and the largest count that bfloat16 holds exactly,
# one per column.
PIECES = {torch.bfloat16: 1, torch.float32: 3}
EXACT_COUNTS = 256
# Partial sums of the backward: enough to fill a GPU, few enough to add quickly.
MAX_CHUNKS = 64


@triton.jit
def table_sum_forward(
    index,
    offsets,
    weight,
    out,
    columns,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: row ``r``, the sum of one table entry per column of the index; NaN for an index
    outside its table."""
    r, f, inside = own_row(width, BLOCK)
    total = tl.zeros([BLOCK], WIDE)
    for c in range(columns):
        value = tl.load(index + r * columns + c)
        entry = value + tl.load(offsets + c)
        end = tl.load(offsets + c + 1)
        valid = inside & (value + 0 * f >= 0) & (entry + 0 * f < end)
        row = tl.load(weight + entry * width + f, mask=valid, other=float("nan"))
        total += row.to(WIDE)
    write(out + r * width + f, total, inside)


@triton.jit
def table_sum_backward(
    grad,
    index,
    offsets,
    partial,
    rows,
    columns,
    entries,
    width: tl.constexpr,
    rows_a_chunk,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the contribution of a chunk of rows to a block of entries and a block of
    columns."""
    chunk = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    f = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ENTRIES, COLUMNS], WIDE)
    for step in range(0, rows_a_chunk, ROWS):
        r = chunk * rows_a_chunk + step + tl.arange(0, ROWS)
        counts = tl.zeros([ENTRIES, ROWS], WIDE)
        for c in range(columns):
            value = tl.load(index + r * columns + c, mask=r < rows, other=0)
            named = tl.where(r < rows, value + tl.load(offsets + c), -1).to(tl.int32)
            counts += (v[:, None] == named[None, :]).to(WIDE)
        here = (r < rows)[:, None] & (f < width)[None, :]
        part = tl.load(grad + r[:, None] * width + f[None, :], mask=here, other=0)
        if PIECES == 0:
            total += tl.dot(counts, part.to(WIDE), input_precision="ieee", out_dtype=WIDE)
        else:
            total += product(counts.to(tl.bfloat16), part.to(tl.bfloat16))
        for _ in tl.static_range(1, PIECES):  # pyright: ignore
            part = part - part.to(tl.bfloat16).to(tl.float32)
            total += product(counts.to(tl.bfloat16), part.to(tl.bfloat16))
    at = partial + (chunk * entries + v[:, None]) * width + f[None, :]
    tl.store(at, total, mask=(v < entries)[:, None] & (f < width)[None, :])


@triton.jit
def table_sum_join(
    partial,
    out,
    rows,
    width: tl.constexpr,
    chunks,
    BLOCK: tl.constexpr,
):
    """One program: a block of numbers of the table's gradient, the sum over all chunks in order."""
    size = tl.full([], width, tl.int64) * rows
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(partial + at, mask=at < size, other=0)
    for chunk in range(1, chunks):
        total += tl.load(partial + chunk * size + at, mask=at < size, other=0)
    write(out + at, total, at < size)


def backward(grad: Tensor, index: Tensor, offsets: Tensor, entries: int) -> Tensor:
    """Runs backward in two launches."""
    grad = grad.contiguous()
    rows, width = grad.shape
    rows_a_chunk = triton.cdiv(triton.cdiv(max(rows, 1), MAX_CHUNKS), ROWS) * ROWS
    chunks = triton.cdiv(max(rows, 1), rows_a_chunk)
    partial = wide_like(grad, chunks, entries, width)
    grid = (chunks, triton.cdiv(entries, ENTRIES), triton.cdiv(width, COLUMNS))
    table_sum_backward[grid](
        grad,
        index,
        offsets,
        partial,
        rows,
        index.size(1),
        entries,
        width,
        rows_a_chunk,
        PIECES=PIECES.get(grad.dtype, 0) if index.size(1) <= EXACT_COUNTS else 0,
        WIDE=wide(grad.dtype),
        ROWS=ROWS,
        ENTRIES=ENTRIES,
        COLUMNS=COLUMNS,
        num_warps=4,
    )
    return join(partial, grad.dtype)


def join(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums ``partial [chunks, V, F]`` in order; one launch."""
    out = partial.new_empty(partial.shape[1:], dtype=dtype)
    table_sum_join[(triton.cdiv(out.numel(), 256),)](
        partial,
        out,
        out.size(0),
        out.size(1),
        len(partial),
        BLOCK=256,
        num_warps=2,  # four values per thread, 16 bytes
    )
    return out


def _each_row(index: Tensor, weight: Tensor) -> dict[str, Any]:
    options = by_row(weight.dtype, weight.size(1))
    return {"grid": (len(index),), "columns": index.size(1), **options}


forward: Launch = Launch(table_sum_forward, options=_each_row)
