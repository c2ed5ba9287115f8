"""``table_sum`` in Triton; its backward is a product with a matrix of counts.

Adding gradient rows up by table entry wants a sort or atomic additions. But the tables are small,
so the matrix that says how often row ``r`` names entry ``v`` can be made block by block in
registers, and the matrix unit multiplies it with the gradient: partial sums over chunks of rows,
then their sum in a fixed order. At 173 entries (OGB's atoms) and 3,295 rows of 64 that is 73
megaflop, nothing to a GPU.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import block, warps, wide, wide_like

ROWS = 64
ENTRIES = 64
COLUMNS = 64
# Partial sums of the backward: enough to fill a GPU, few enough to add up in a moment.
MAX_CHUNKS = 64


@triton.jit
def forward_kernel(
    index,
    offsets,
    weight,
    out,
    columns,
    width,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    inside = f < width
    total = tl.zeros([BLOCK], WIDE)
    for c in range(columns):
        value = tl.load(index + r * columns + c)
        entry = value + tl.load(offsets + c)
        end = tl.load(offsets + c + 1)
        valid = inside & (value + 0 * f >= 0) & (entry + 0 * f < end)
        row = tl.load(weight + entry * width + f, mask=valid, other=float("nan"))
        total += row.to(WIDE)
    tl.store(out + r * width + f, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    grad,
    index,
    offsets,
    partial,
    rows,
    columns,
    entries,
    width,
    rows_a_chunk,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    chunk = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    f = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ENTRIES, COLUMNS], WIDE)
    for step in range(0, rows_a_chunk, ROWS):
        r = chunk * rows_a_chunk + step + tl.arange(0, ROWS)
        counts = tl.zeros([ENTRIES, ROWS], WIDE)
        for c in range(columns):
            value = tl.load(index + r * columns + c, mask=r < rows, other=0)
            entry = value + tl.load(offsets + c)
            counts += ((v[:, None] == entry[None, :]) & (r < rows)[None, :]).to(WIDE)
        here = (r < rows)[:, None] & (f < width)[None, :]
        part = tl.load(grad + r[:, None] * width + f[None, :], mask=here, other=0).to(WIDE)
        total += tl.dot(counts, part, input_precision="ieee", out_dtype=WIDE)
    at = partial + (chunk * entries + v[:, None]) * width + f[None, :]
    tl.store(at, total, mask=(v < entries)[:, None] & (f < width)[None, :])


@triton.jit
def codes_kernel(index, offsets, out, rows, columns, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    code = tl.zeros([BLOCK], tl.int64)
    for c in range(columns):
        size = tl.load(offsets + c + 1) - tl.load(offsets + c)
        value = tl.load(index + r * columns + c, mask=r < rows, other=0)
        # An index outside its table must not leave the folded one; see fold_codes.
        code = code * size + tl.minimum(tl.maximum(value, 0), size - 1)
    tl.store(out + r, code, mask=r < rows)


def forward(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """As the operator; one launch."""
    rows, columns = index.shape
    out, columns_block = weight.new_empty(rows, weight.size(1)), block(weight.size(1))
    forward_kernel[(rows,)](
        index,
        offsets,
        weight,
        out,
        columns,
        weight.size(1),
        WIDE=wide(weight.dtype),
        BLOCK=columns_block,
        num_warps=warps(columns_block),
    )
    return out


def backward(grad: Tensor, index: Tensor, offsets: Tensor, entries: int) -> Tensor:
    """As the operator; one launch and one sum."""
    grad = grad.contiguous()
    rows, width = grad.shape
    rows_a_chunk = triton.cdiv(triton.cdiv(rows, MAX_CHUNKS), ROWS) * ROWS
    chunks = triton.cdiv(rows, rows_a_chunk)
    partial = wide_like(grad, chunks, entries, width)
    grid = (chunks, triton.cdiv(entries, ENTRIES), triton.cdiv(width, COLUMNS))
    backward_kernel[grid](
        grad,
        index,
        offsets,
        partial,
        rows,
        index.size(1),
        entries,
        width,
        rows_a_chunk,
        WIDE=wide(grad.dtype),
        ROWS=ROWS,
        ENTRIES=ENTRIES,
        COLUMNS=COLUMNS,
        num_warps=4,
    )
    return torch.sum(partial, 0).to(grad.dtype)


def codes(index: Tensor, offsets: Tensor) -> Tensor:
    """As the operator; one launch."""
    rows, columns = index.shape
    out = index.new_empty(rows)
    codes_kernel[(triton.cdiv(rows, 256),)](index, offsets, out, rows, columns, BLOCK=256)
    return out
