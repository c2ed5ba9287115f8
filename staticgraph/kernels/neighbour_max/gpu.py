"""``neighbour_max`` in Triton: one program per node, edges in order, no atomic operation.

Backward is two launches: by destination, the gradient that each of the tied largest messages gets,
and by source through the transpose, which messages those were.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import Launch, each_row, own_row, read, span, wide_like, write


@triton.jit
def neighbour_max_forward(
    x,
    edge,
    src,
    row_ptr,
    out,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the row of node ``i``, column by column the largest message over the edges into
    it."""
    i, f, inside = own_row(width, BLOCK)
    first, last = span(row_ptr, i)
    best = tl.zeros([BLOCK], WIDE) - float("inf")
    for e in range(first, last):
        j = tl.load(src + e)
        value = read(x + j * width + f, inside, WIDE)
        if edge is not None:
            value += read(edge + e * width + f, inside, WIDE)
            value = tl.where(value <= 0, 0, value)
        best = tl.where((value > best) | (value != value), value, best)
    best = tl.where(last > first, best, 0)
    write(out + i * width + f, best, inside)


@triton.jit
def neighbour_max_shares(
    grad,
    x,
    edge,
    out,
    src,
    row_ptr,
    share,
    largest,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the part of node ``i``'s gradient that each of the tied largest messages gets.

    If messages are sums, it also stores the maximum before it was rounded.
    """
    i, f, inside = own_row(width, BLOCK)
    first, last = span(row_ptr, i)
    if (
        edge is not None
    ):  # the result was rounded to its dtype, so the maximum is recomputed from the sums
        best = tl.zeros([BLOCK], WIDE)
        for e in range(first, last):
            value = read(x + tl.load(src + e) * width + f, inside, WIDE)
            value += read(edge + e * width + f, inside, WIDE)
            best = tl.where((value > best) | (value != value), value, best)
        tl.store(largest + i * width + f, best, mask=inside)
    else:
        best = read(out + i * width + f, inside, WIDE)
    count = tl.where(best == 0, 1, 0).to(WIDE)
    for e in range(first, last):
        value = read(x + tl.load(src + e) * width + f, inside, WIDE)
        if edge is not None:
            value += read(edge + e * width + f, inside, WIDE)
            value = tl.where(value <= 0, 0, value)
        count += tl.where(value == best, 1, 0)
    part = read(grad + i * width + f, inside, WIDE) / count
    tl.store(share + i * width + f, part, mask=inside)


@triton.jit
def neighbour_max_backward(
    share,
    x,
    edge,
    largest,
    dst,
    col_ptr,
    transpose,
    dx,
    dedge,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradient of node ``j``'s row, and of the edges out of it, where they were
    largest."""
    j, f, inside = own_row(width, BLOCK)
    own = read(x + j * width + f, inside, WIDE)
    total = tl.zeros([BLOCK], WIDE)
    for k in range(tl.load(col_ptr + j), tl.load(col_ptr + j + 1)):
        e = tl.load(transpose + k).to(tl.int64)
        i = tl.load(dst + e)
        best = read(largest + i * width + f, inside, WIDE)
        part = read(share + i * width + f, inside, WIDE)
        if edge is not None:
            value = own + read(edge + e * width + f, inside, WIDE)
            part = part * ((value == best) & (value > 0)).to(WIDE)
            at = dedge + e * width + f
            write(at, part, inside)
        else:
            part = part * (own == best).to(WIDE)
        total += part
    write(dx + j * width + f, total, inside)


def _backward_options(x: Tensor, edge: Tensor | None, out: Tensor) -> dict[str, Any]:
    share = wide_like(x, *x.shape)
    largest = out if edge is None else torch.empty_like(share)
    return {"share": share, "largest": largest, **each_row(x)}


forward: Launch = Launch(neighbour_max_forward, options=each_row)
backward: Launch = Launch(neighbour_max_shares, neighbour_max_backward, options=_backward_options)
