"""Sizes of Triton launches, in one place.

The width of rows is known when a kernel is compiled: as an argument it would leave the compiler to
guess that 16 divides it, so that rows of 300 were loaded number by number. A model has few widths.
Widths are rounded up to a power of two, which Triton wants, and a program takes a whole row: the
widths of graph networks (64 to 1,024) fit the registers of a few warps.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from staticgraph.text.how_many import how_many

# Triton's interpreter keeps bfloat16 as integers, and multiplies these in a product of tiles.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
# Wider rows would spill registers; nothing in the model zoo comes near.
MAX_WIDTH = 8192


@triton.jit
def product(a, b):
    """``a @ b`` of tiles in their own dtype, summed in float32, on the matrix unit.

    float32 goes as three products of its halves of 11 bits, as in torch's own attention of float32
    (cutlass's ``OpMultiplyAddFastF32``): within 2 ** -21 of each product.
    """
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="tf32x3")


def block(width: int) -> int:
    """The block that holds a row, at least 16 (the smallest side of a matrix instruction).

    Raises:
        ValueError: the row is wider than the kernels take.
    """
    if width > MAX_WIDTH:
        raise ValueError(
            f"rows of {how_many(width, 'column')}; the kernels take at most {MAX_WIDTH}"
        )
    return max(16, triton.next_power_of_2(width))


def warps(columns: int) -> int:
    """Four columns a thread, up to eight warps."""
    return max(1, min(8, columns // 128))


def wide(dtype: torch.dtype) -> Any:
    """In what a dtype is added up: float32, or float64 for float64."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def wide_like(value: Tensor, *shape: int) -> Tensor:
    """An empty tensor of that precision."""
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    return torch.empty(shape, dtype=dtype, device=value.device)
