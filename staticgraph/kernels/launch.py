"""Sizes of Triton launches.

The row width is a compile-time constant of every kernel. As a runtime argument it would be
specialised only on whether 16 divides it, and rows of 300 would be loaded number by number. A model
has few widths, so there are few variants. Blocks are rounded up to a power of two, as Triton
requires, and a program takes a whole row: the widths of graph networks (64 to 1,024) fit the
registers of a few warps.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from staticgraph.kernels.register import Operator
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
def places(r, rows, f, width):
    """Returns the places of rows ``r`` at columns ``f``, and which of these exist."""
    return r[:, None] * width + f[None, :], (r < rows)[:, None] & (f < width)[None, :]


@triton.jit
def tile(start, last, f, width, ROWS: tl.constexpr):
    """Returns rows from ``start`` on, and their :func:`places` at columns ``f``."""
    r = start + tl.arange(0, ROWS)
    at, here = places(r, last, f, width)
    return r, at, here


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


# The options of a launch that are Triton's own.
TRITON = ("num_warps", "num_stages")


class Launch:
    """An operator on CUDA that is launches alone: what its kernels take has the operator's names.

    Args:
        kernels: Triton functions, launched in order. A parameter with the name of an argument or
            result of the operator gets its value, None included.
        options: its parameters have such names, too; returns the number of programs as ``grid``,
            the kernels' other parameters, those that they get in place of an argument or result,
            and Triton's options.
    """

    def __init__(self, *kernels: Any, options: Callable[..., dict[str, Any]]) -> None:
        self.kernels: tuple[Any, ...] = kernels
        self.options: Callable[..., dict[str, Any]] = options

    def over(self, operator: Operator) -> Callable[..., Any]:
        """Returns the CUDA side of an operator."""
        place = {name: position for position, name in enumerate(operator.names)}
        positions = [place[name] for name in signature(self.options).parameters]
        launches = [
            (kernel, [(name, place.get(name, -1)) for name in kernel.arg_names])
            for kernel in self.kernels
        ]

        def on_cuda(*arguments: Any) -> Any:
            """Allocates the results and launches the kernels."""
            results = operator.fake(*arguments)
            values = [*arguments, *(results if isinstance(results, tuple) else [results])]
            options = self.options(*[values[position] for position in positions])
            for kernel, names in launches:
                operands = [
                    options[name] if name in options else values[position]
                    for name, position in names
                ]
                how = {name: options[name] for name in TRITON if name in options}
                kernel[options["grid"]](*operands, **how)
            return results

        return on_cuda


def by_row(dtype: torch.dtype, width: int) -> dict[str, Any]:
    """Returns the options of kernels whose programs take a row of ``width`` columns."""
    columns = block(width)
    return {"width": width, "WIDE": wide(dtype), "BLOCK": columns, "num_warps": warps(columns)}


def wide_like(value: Tensor, *shape: int) -> Tensor:
    """Allocates an uninitialised tensor in the accumulation dtype of ``value``."""
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    return torch.empty(shape, dtype=dtype, device=value.device)
