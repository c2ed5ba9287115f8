"""Sizes of Triton launches.

The row width is a compile-time constant of every kernel. As a runtime argument it would be
specialised only on whether 16 divides it, and rows of 300 would be loaded number by number. A model
has few widths, so there are few variants. Blocks are rounded up to a power of two, as Triton
requires, and a program takes a whole row: the widths of graph networks (64 to 1,024) fit the
registers of a few warps.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from staticgraph.text.how_many import how_many

# Triton's interpreter stores bfloat16 as integers, and would multiply those in a product of tiles.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
# Wider rows would spill registers; no model in the zoo comes close.
MAX_WIDTH = 8192


@triton.jit
def product(a, b):
    """Computes ``a @ b`` of tiles in their own dtype, summed in float32, on the matrix unit.

    float32 is computed as three products of its 11-bit halves, as in torch's own float32 attention
    (cutlass's ``OpMultiplyAddFastF32``): within 2 ** -21 of each product.
    """
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def own_row(width, BLOCK: tl.constexpr):
    """Returns the number of the program, and the columns of a row and which of them exist."""
    f = tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64), f, f < width


@triton.jit
def span(ptr, i):
    """Returns the first row of segment ``i``, and the first one after it."""
    return tl.load(ptr + i).to(tl.int64), tl.load(ptr + i + 1).to(tl.int64)


@triton.jit
def tile(start, last, f, width, ROWS: tl.constexpr):
    """Returns rows from ``start`` on, their places at columns ``f``, and which of these exist."""
    r = start + tl.arange(0, ROWS)
    return r, r[:, None] * width + f[None, :], (r < last)[:, None] & (f < width)[None, :]


@triton.jit
def cells(h, heads, width, BLOCK: tl.constexpr):
    """Returns the places of heads ``h`` in a row of all heads, and which of these exist."""
    c = tl.arange(0, BLOCK)
    inside = (h < heads)[:, None] & (c < width)[None, :]
    return h[:, None] * width + c[None, :], inside


@triton.jit
def read(at, mask, WIDE: tl.constexpr):
    """Loads numbers as another dtype; zeros outside of the mask."""
    return tl.load(at, mask=mask, other=0).to(WIDE)


@triton.jit
def write(at, value, mask):
    """Stores numbers inside the mask, rounded to the dtype of the memory."""
    tl.store(at, value.to(at.dtype.element_ty), mask=mask)


def block(width: int) -> int:
    """Returns the block size for a row: a power of two, at least 16 (the smallest side of a matrix
    instruction).

    Raises:
        ValueError: the row is wider than the kernels support.
    """
    if width > MAX_WIDTH:
        raise ValueError(
            f"rows of {how_many(width, 'column')}; the kernels take at most {MAX_WIDTH}"
        )
    return max(16, triton.next_power_of_2(width))


def warps(columns: int) -> int:
    """Returns the number of warps for four columns per thread, up to eight."""
    return max(1, min(8, columns // 128))


def wide(dtype: torch.dtype) -> Any:
    """Returns the Triton dtype for accumulation: float32, or float64 for float64."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def by_row(dtype: torch.dtype, width: int, rows: int = 1) -> dict[str, Any]:
    """Returns the options of kernels whose programs take ``rows`` rows of ``width`` columns."""
    columns = block(width)
    return {"WIDE": wide(dtype), "BLOCK": columns, "num_warps": warps(rows * columns)}


def wide_like(value: Tensor, *shape: int) -> Tensor:
    """Allocates an uninitialised tensor in the accumulation dtype of ``value``."""
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    return torch.empty(shape, dtype=dtype, device=value.device)
