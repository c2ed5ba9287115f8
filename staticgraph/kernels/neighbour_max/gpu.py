"""``neighbour_max`` in Triton: one program per node, edges in order, no atomic operation.

Backward is two launches: by destination, the gradient that each of the tied largest messages gets,
and by source through the transpose, which messages those were.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import by_row, own_row, read, span, wide_like, write
from staticgraph.kernels.shapes import empty_like


@triton.jit
def neighbour_max_forward(
    x,
    edge,
    src,
    row_ptr,
    out,
    width: tl.constexpr,
    EDGED: tl.constexpr,
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
        if EDGED:
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
    EDGED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the part of node ``i``'s gradient that each of the tied largest messages gets.

    If messages are sums, it also stores the maximum before it was rounded.
    """
    i, f, inside = own_row(width, BLOCK)
    first, last = span(row_ptr, i)
    if EDGED:  # the result was rounded to its dtype, so the maximum is recomputed from the sums
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
        if EDGED:
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
    EDGED: tl.constexpr,
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
        if EDGED:
            value = own + read(edge + e * width + f, inside, WIDE)
            part = part * ((value == best) & (value > 0)).to(WIDE)
            at = dedge + e * width + f
            write(at, part, inside)
        else:
            part = part * (own == best).to(WIDE)
        total += part
    write(dx + j * width + f, total, inside)


def forward(x: Tensor, edge: Tensor | None, edges: Sequence[Tensor]) -> Tensor:
    """Runs forward in one launch."""
    out, (src, _, row_ptr, _, _) = torch.empty_like(x), edges
    given = x if edge is None else edge
    neighbour_max_forward[(len(x),)](x, given, src, row_ptr, out, x.size(1), **_options(x, edge))
    return out


def backward(
    grad: Tensor, x: Tensor, edge: Tensor | None, out: Tensor, edges: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Runs backward in two launches."""
    src, dst, row_ptr, col_ptr, transpose = edges
    dx, share = torch.empty_like(x), wide_like(x, *x.shape)
    dedge = empty_like(edge, x)
    largest = out if edge is None else torch.empty_like(share)
    given, options = x if edge is None else edge, _options(x, edge)
    neighbour_max_shares[(len(x),)](
        grad, x, given, out, src, row_ptr, share, largest, x.size(1), **options
    )
    neighbour_max_backward[(len(x),)](
        share, x, given, largest, dst, col_ptr, transpose, dx, dedge, x.size(1), **options
    )
    return dx, dedge


def _options(x: Tensor, edge: Tensor | None) -> dict[str, object]:
    return {"EDGED": edge is not None, **by_row(x.dtype, x.size(1))}
