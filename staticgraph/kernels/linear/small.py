"""``linear`` of few rows in Triton: backward in one launch, and mixed precision without casts.

The problem: the backward of a linear layer is a product for the input, one for the weight, a sum
for the bias, and ReLU's mask before all of them: four or five launches, each shorter than its
launch overhead. Under autocast every weight, bias and gradient is also cast, one launch each. Here
a program computes one tile of the input's gradient, or one of the weight's over a chunk of rows. It
masks what it reads, the weight's first tiles sum the bias gradient on the way, and operands are
cast in registers. Of the programs of one tile, the one that is last to draw a ticket adds the
chunks, in their order whichever program it is: the same bits in every run.

Not supported: float64, and shapes beyond :func:`fits`, for which torch's products are faster.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.internals.dispatch import addmm_activation
from staticgraph.kernels.launch import Launch, places, product, read, wide_like, write
from staticgraph.kernels.linear.limits import chunks_of, fits
from staticgraph.kernels.linear.op import (
    LINEAR,
    backward_by,
    by_library,
    shape_of,
    torch_product,
    zero_tickets,
)

# Sides of a tile of forward's results, and the depth that a program multiplies per step.
ROWS, COLUMNS, STEP = 32, 64, 32


@triton.jit
def matrix_tile(rows, r, last, c, width):
    """Loads columns ``c`` of rows ``r``; zeros beyond the last."""
    here = (r < last)[:, None] & (c < width)[None, :]
    return tl.load(rows + r[:, None] * width + c[None, :], mask=here, other=0)


@triton.jit
def weight_places(o, OUT: tl.constexpr, i, WIDTH: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Returns the places of outputs ``o`` and inputs ``i`` of a weight, and which of these exist;
    one that is transposed has its inputs first in memory."""
    here = (o < OUT)[:, None] & (i < WIDTH)[None, :]
    if TRANSPOSED:
        return i[None, :] * OUT + o[:, None], here
    return o[:, None] * WIDTH + i[None, :], here


@triton.jit
def linear_small_forward(
    x,
    weight,
    bias,
    out,
    rows,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    relu: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """One program: a tile of the output, rows by columns."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    narrow = out.dtype.element_ty
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, WIDTH, STEP):
        i = first + tl.arange(0, STEP)
        value = matrix_tile(x, r, rows, i, WIDTH)
        at, here = weight_places(o, OUT, i, WIDTH, TRANSPOSED)
        by = tl.load(weight + at, mask=here, other=0)
        total += product(value.to(narrow), tl.trans(by.to(narrow)))
    if bias is not None:
        total += read(bias + o, o < OUT, narrow).to(tl.float32)[None, :]
    if relu:
        total = tl.where(total <= 0, 0, total)
    here = (r < rows)[:, None] & (o < OUT)[None, :]
    write(out + r[:, None] * OUT + o[None, :], total, here)


@triton.jit
def masked(grad, out, r, o, last, OUT: tl.constexpr):
    """Loads the gradient of rows ``r`` up to ``last``, columns ``o``, under ReLU's mask."""
    at, here = places(r, last, o, OUT)
    part = tl.load(grad + at, mask=here, other=0)
    if out is not None:
        part = tl.where(tl.load(out + at, mask=here, other=0) <= 0, 0, part)
    return part


@triton.jit
def input_tile(
    grad,
    weight,
    out,
    into,
    dx,
    tile,
    rows,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Computes a tile of the input's gradient, rows by columns."""
    across: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    r = (tile // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, OUT, STEP):
        o = first + tl.arange(0, STEP)
        part = masked(grad, out, r, o, rows, OUT)
        at, here = weight_places(o, OUT, i, WIDTH, TRANSPOSED)
        by = tl.load(weight + at, mask=here, other=0)
        total += product(part, by.to(part.dtype))
    at, here = places(r, rows, i, WIDTH)
    if into is not None:
        total += read(into + at, here, tl.float32)
    write(dx + at, total, here)


@triton.jit
def weight_tile(
    grad,
    x,
    out,
    into,
    weights,
    biases,
    dweight,
    dbias,
    tickets,
    tile,
    rows,
    rows_a_chunk,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    SIDE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Computes a tile of the weight's gradient over a chunk of rows, and the sum over chunks if
    the others are done; the first tile of each row of tiles also sums the bias gradient."""
    high: tl.constexpr = (OUT + SIDE - 1) // SIDE
    across: tl.constexpr = (WIDTH + SIDE - 1) // SIDE
    chunk = (tile // (high * across)).to(tl.int64)
    o = (tile // across % high) * SIDE + tl.arange(0, SIDE)
    i = (tile % across) * SIDE + tl.arange(0, SIDE)
    total = tl.zeros([SIDE, SIDE], tl.float32)
    sums = tl.zeros([SIDE], tl.float32)
    last = tl.minimum((chunk + 1) * rows_a_chunk, rows)
    for first in range(chunk * rows_a_chunk, last, STEP):
        r = first + tl.arange(0, STEP)
        part = masked(grad, out, r, o, last, OUT)
        value = matrix_tile(x, r, last, i, WIDTH)
        total += product(tl.trans(part), value.to(part.dtype))
        sums += tl.sum(part.to(tl.float32), 0)
    at, here = weight_places(o.to(tl.int64), OUT, i, WIDTH, TRANSPOSED)
    column = o < tl.where(tile % across == 0, OUT, 0)
    if tickets is not None:
        chunks = tl.cdiv(rows, rows_a_chunk)
        tl.store(weights + chunk * OUT * WIDTH + at, total, mask=here)
        tl.store(biases + chunk * OUT + o, sums, mask=column)
        ticket = tickets + tile % (high * across)
        # All threads have stored their part before one of them draws the program's ticket.
        tl.debug_barrier()
        drawn = tl.atomic_add(ticket, 1, sem="acq_rel")
        if drawn == chunks - 1:
            tl.debug_barrier()
            total = tl.zeros([SIDE, SIDE], tl.float32)
            sums = tl.zeros([SIDE], tl.float32)
            for _ in range(chunks):
                total += tl.load(weights + at, mask=here, other=0)
                sums += tl.load(biases + o, mask=column, other=0)
                weights += OUT * WIDTH
                biases += OUT
            if into is not None:
                total += read(into + at, here, tl.float32)
            write(dweight + at, total, here)
            write(dbias + o, sums, column)
            tl.store(ticket, 0)
    else:
        if into is not None:
            total += read(into + at, here, tl.float32)
        write(dweight + at, total, here)
        write(dbias + o, sums, column)


@triton.jit
def linear_small_backward(
    grad,
    x,
    weight,
    out,
    into,
    into_weight,
    dx,
    weights,
    biases,
    dweight,
    dbias,
    tickets,
    rows,
    rows_a_chunk,
    of_weight,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIDE: tl.constexpr,
    STEP: tl.constexpr,
):
    """One program: a tile of the weight's gradient for the first ``of_weight`` programs, which take
    longest, of the input's gradient for the others."""
    tile = tl.program_id(0)
    if tile >= of_weight:
        tile -= of_weight
        input_tile(
            grad,
            weight,
            out,
            into,
            dx,
            tile,
            rows,
            WIDTH,
            OUT,
            TRANSPOSED,
            ROWS,
            COLUMNS,
            STEP,
        )
    else:
        weight_tile(
            grad,
            x,
            out,
            into_weight,
            weights,
            biases,
            dweight,
            dbias,
            tickets,
            tile,
            rows,
            rows_a_chunk,
            WIDTH,
            OUT,
            TRANSPOSED,
            SIDE,
            STEP,
        )


def _forward_options(x: Tensor, weight: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    rows, (high, width) = x.size(0), weight.shape
    return {
        "grid": (triton.cdiv(max(rows, 1), ROWS), triton.cdiv(high, COLUMNS)),
        "rows": rows,
        "WIDTH": width,
        "OUT": high,
        "TRANSPOSED": not weight.is_contiguous(),
        "ROWS": ROWS,
        "COLUMNS": COLUMNS,
        "STEP": STEP * 4 // dtype.itemsize,
        "num_warps": 4,
        "num_stages": 2,
    }


# Rounds as if operands had been cast to the result's dtype.
forward: Callable[..., Any] = Launch(linear_small_forward, options=_forward_options).over(LINEAR)


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    out: Tensor | None,
    into: Tensor | None,
    into_weight: Tensor | None,
    tickets: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs backward in one launch.

    Args:
        tickets: zeros before and after it, as many as :data:`~limits.TICKETS`, for rows of several
            chunks; its own if None. Launches that follow each other on a stream may share them.
    """
    grad = grad.contiguous()
    into = None if into is None else into.contiguous()
    if into_weight is not None and into_weight.stride() != weight.stride():
        into_weight = torch.empty_like(weight).copy_(into_weight)
    rows, (high, width) = x.size(0), weight.shape
    dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), weight.new_empty(high)
    chunks, rows_a_chunk = chunks_of(rows)
    partial = (None, None, None)
    if chunks > 1:
        if tickets is None:
            tickets = zero_tickets(grad.device)
        partial = (wide_like(grad, chunks, high, width), wide_like(grad, chunks, high), tickets)
    tiles = backward_tiles(width, high, grad.dtype)
    of_input = triton.cdiv(rows, tiles["ROWS"]) * triton.cdiv(width, tiles["COLUMNS"])
    of_weight = chunks * triton.cdiv(high, tiles["SIDE"]) * triton.cdiv(width, tiles["SIDE"])
    linear_small_backward[(of_input + of_weight,)](
        grad,
        x,
        weight,
        out,
        into,
        into_weight,
        dx,
        *partial[:2],
        dweight,
        dbias,
        partial[2],
        rows,
        rows_a_chunk,
        of_weight,
        width,
        high,
        not weight.is_contiguous(),
        **tiles,
    )
    return dx, dweight, dbias


def backward_tiles(width: int, high: int, dtype: torch.dtype) -> dict[str, int]:
    """Returns the launch options of backward for a weight ``[high, width]``.

    They are the best of 32 on an H200 at 823 and 6,575 rows, for weights of 64 and of 300 squared;
    the border between the two was not measured.
    Stages: the operands of the next steps are loaded while the current ones are multiplied.
    """
    half = dtype.itemsize < 4
    if min(width, high) <= 128:
        return {**_tiles(32, 32, 64 if half else 32), "num_warps": 2, "num_stages": 3}
    return {**_tiles(64 if half else 32, 64, 32), "num_warps": 4, "num_stages": 3}


def _tiles(rows: int, side: int, step: int) -> dict[str, int]:
    return {"ROWS": rows, "COLUMNS": COLUMNS, "SIDE": side, "STEP": step}


def on_cuda(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, dtype: torch.dtype
) -> Tensor:
    """Runs forward by torch's product or this module's kernel."""
    if by_library(x, weight, dtype):
        cast = None if bias is None else bias.to(dtype)
        return by_torch(x.to(dtype), weight.to(dtype), cast, relu)
    return forward(x, weight, bias, relu, dtype)


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Runs forward in one launch; ReLU without a bias takes a second one.

    ``_addmm_activation`` has no public name; Inductor's own pass for a linear layer followed by
    ReLU calls it on CUDA. cuBLASLt adds the bias and clips in the product's epilogue, in float32
    and the half precisions; where it cannot (a single column), torch falls back to a separate ReLU
    launch.
    """
    if relu and bias is not None:
        return addmm_activation(bias, x, weight.t(), use_gelu=False)
    out = F.linear(x, weight, bias)
    return out.relu_() if relu else out


def backward_on_cuda(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    out: Tensor | None,
    into: Tensor | None,
    into_weight: Tensor | None,
    tickets: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs backward by this module's kernel or torch's products."""
    if fits(*shape_of(x, weight), grad.dtype, x.dtype, weight.dtype):
        return backward(grad, x, weight, out, into, into_weight, tickets)
    return backward_by([torch_product] * 2, grad, x, weight, out, into, into_weight)
