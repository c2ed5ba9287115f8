"""``neighbour_attention`` in Triton: one program per node, no atomic addition.

Forward makes two passes over the edges into a node: the softmax's maximum and sum, from the scores
alone, then the weights and the weighted sum. Backward walks the edges out of a node through the
transpose, which gives the gradient of its row, of its score term as a source, and of each edge's
score; a second launch sums the edges' score gradients by destination. The gradient of a score needs
only ``grad . (x_j - out_i)``, since the mean of ``grad . x`` under the weights is ``grad . out``.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import by_row, cells, read, span, wide_like, write
from staticgraph.kernels.shapes import empty_like


@triton.jit
def score_of(
    pair,
    edge,
    r,
    j,
    i,
    nodes,
    heads: tl.constexpr,
    h,
    PAIRED: tl.constexpr,
    EDGED: tl.constexpr,
    zero,
):
    """Returns the scores ``[HEADS]`` of an edge, before the leaky ReLU."""
    value = zero
    known = h < heads
    if PAIRED:
        at = pair + h.to(tl.int64) * 2 * nodes
        value += read(at + 2 * j, known, zero.dtype)
        value += read(at + 2 * i + 1, known, zero.dtype)
    if EDGED:
        value += read(edge + r * heads + h, known, zero.dtype)
    return value


@triton.jit
def neighbour_attention_forward(
    x,
    pair,
    edge,
    own,
    src,
    row_ptr,
    out,
    share,
    own_share,
    slope: tl.constexpr,
    nodes,
    heads: tl.constexpr,
    width: tl.constexpr,
    PAIRED: tl.constexpr,
    EDGED: tl.constexpr,
    OWNED: tl.constexpr,
    LOOPS: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the output row of node ``i``, all heads, and the weights of the edges into
    it."""
    i = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    place, inside = cells(h, heads, width, BLOCK)
    zero = tl.zeros([HEADS], WIDE)
    first, last = span(row_ptr, i)
    largest = zero - float("inf")
    total = zero
    if LOOPS:
        largest = score_of(pair, own, i, i, i, nodes, heads, h, PAIRED, OWNED, zero)
        largest = tl.where(largest > 0, largest, slope * largest)
        total = zero + 1
    mine = largest
    for e in range(first, last):
        j = tl.load(src + e)
        value = score_of(pair, edge, e, j, i, nodes, heads, h, PAIRED, EDGED, zero)
        value = tl.where(value > 0, value, slope * value)
        if LOOPS:
            value = tl.where(j == i, -float("inf"), value)
        more = tl.where(largest > value, largest, value)  # NaN propagates
        # If equal to the maximum the factor is one, also where both are minus infinity.
        total = total * tl.where(largest == more, 1, tl.exp(largest - more))
        total += tl.where(value == more, 1, tl.exp(value - more))
        largest = more
    result = tl.zeros([HEADS, BLOCK], WIDE)
    if LOOPS:
        part = tl.exp(mine - largest) / total
        tl.store(own_share + i * heads + h, part, mask=known)
        row = read(x + i * heads * width + place, inside, WIDE)
        result = part[:, None] * row
    for e in range(first, last):
        j = tl.load(src + e)
        value = score_of(pair, edge, e, j, i, nodes, heads, h, PAIRED, EDGED, zero)
        value = tl.where(value > 0, value, slope * value)
        part = tl.exp(value - largest) / total
        if LOOPS:
            part = tl.where(j == i, 0, part)
        tl.store(share + e * heads + h, part, mask=known)
        row = read(x + j * heads * width + place, inside, WIDE)
        result += part[:, None] * row
    write(out + i * heads * width + place, result, inside)


@triton.jit
def neighbour_attention_sources(
    grad,
    x,
    out,
    share,
    own_share,
    pair,
    edge,
    own,
    dst,
    col_ptr,
    transpose,
    dx,
    dpair,
    dedge,
    down,
    slope: tl.constexpr,
    nodes,
    heads: tl.constexpr,
    width: tl.constexpr,
    PAIRED: tl.constexpr,
    EDGED: tl.constexpr,
    OWNED: tl.constexpr,
    LOOPS: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradients of node ``j``'s row, all heads, of its score term as a source, and
    of the scores of the edges out of it."""
    j = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    place, inside = cells(h, heads, width, BLOCK)
    zero = tl.zeros([HEADS], WIDE)
    row = read(x + j * heads * width + place, inside, WIDE)
    result = tl.zeros([HEADS, BLOCK], WIDE)
    as_source = zero
    if LOOPS:
        g = read(grad + j * heads * width + place, inside, WIDE)
        o = read(out + j * heads * width + place, inside, WIDE)
        part = tl.load(own_share + j * heads + h, mask=known, other=0)
        result += part[:, None] * g
        value = part * tl.sum(g * (row - o), 1)
        score = score_of(pair, own, j, j, j, nodes, heads, h, PAIRED, OWNED, zero)
        value = tl.where(score > 0, value, slope * value)
        as_source += value
        write(down + j * heads + h, value, known)
    for k in range(tl.load(col_ptr + j), tl.load(col_ptr + j + 1)):
        e = tl.load(transpose + k).to(tl.int64)
        i = tl.load(dst + e)
        g = read(grad + i * heads * width + place, inside, WIDE)
        o = read(out + i * heads * width + place, inside, WIDE)
        part = tl.load(share + e * heads + h, mask=known, other=0)
        result += part[:, None] * g
        value = part * tl.sum(g * (row - o), 1)
        score = score_of(pair, edge, e, j, i, nodes, heads, h, PAIRED, EDGED, zero)
        value = tl.where(score > 0, value, slope * value)
        as_source += value
        write(dedge + e * heads + h, value, known)
    write(dx + j * heads * width + place, result, inside)
    if PAIRED:
        at = dpair + h.to(tl.int64) * 2 * nodes + 2 * j
        write(at, as_source, known)


@triton.jit
def neighbour_attention_targets(
    dedge,
    down,
    row_ptr,
    dpair,
    nodes,
    heads: tl.constexpr,
    LOOPS: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
):
    """One program: the gradient of node ``i``'s score term as a target, summed over the edges into
    it."""
    i = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    total = tl.zeros([HEADS], WIDE)
    if LOOPS:
        total += read(down + i * heads + h, known, WIDE)
    for e in range(tl.load(row_ptr + i).to(tl.int64), tl.load(row_ptr + i + 1).to(tl.int64)):
        total += read(dedge + e * heads + h, known, WIDE)
    at = dpair + h.to(tl.int64) * 2 * nodes + 2 * i + 1
    write(at, total, known)


def forward(
    x: Tensor,
    pair: Tensor | None,
    edge: Tensor | None,
    own: Tensor | None,
    edges: Sequence[Tensor],
    heads: int,
    slope: float,
    loops: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs forward in one launch."""
    out, (src, _, row_ptr, _, _) = torch.empty_like(x, dtype=dtype), edges
    share = wide_like(x, len(src), heads)
    own_share = wide_like(x, len(x) if loops else 0, heads)
    terms, sizes, options = _given(x, pair, edge, own, heads, slope, loops)
    neighbour_attention_forward[(len(x),)](
        x, *terms, src, row_ptr, out, share, own_share, *sizes, **options
    )
    return out, share, own_share


def backward(
    grad: Tensor,
    x: Tensor,
    out: Tensor,
    share: Tensor,
    own_share: Tensor,
    pair: Tensor | None,
    edge: Tensor | None,
    own: Tensor | None,
    edges: Sequence[Tensor],
    heads: int,
    slope: float,
    loops: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs backward in two launches, or one without a pair."""
    _, dst, row_ptr, col_ptr, transpose = edges
    dx, dpair = torch.empty_like(x), empty_like(pair, x)
    dedge = share.new_empty(len(dst), heads)  # in the accumulation dtype, since it is summed again
    down = share.new_empty(len(x) if loops else 0, heads)
    terms, sizes, options = _given(x, pair, edge, own, heads, slope, loops)
    given = grad, x, out, share, own_share, *terms, dst, col_ptr, transpose
    neighbour_attention_sources[(len(x),)](*given, dx, dpair, dedge, down, *sizes, **options)
    if pair is not None:
        neighbour_attention_targets[(len(x),)](
            dedge,
            down,
            row_ptr,
            dpair,
            len(x),
            heads,
            LOOPS=loops,
            WIDE=options["WIDE"],
            HEADS=options["HEADS"],
            num_warps=1,
        )
    return dx, dpair, dedge, down


def _given(
    x: Tensor,
    pair: Tensor | None,
    edge: Tensor | None,
    own: Tensor | None,
    heads: int,
    slope: float,
    loops: bool,
) -> tuple[tuple[Tensor, ...], tuple[Any, ...], dict[str, Any]]:
    """Returns the terms of scores, the sizes and the options that both large kernels share."""
    width, rows = x.size(1) // heads, triton.next_power_of_2(heads)
    options = {"LOOPS": loops, "HEADS": rows, **by_row(x.dtype, width, rows)}
    for name, term in (("PAIRED", pair), ("EDGED", edge), ("OWNED", own)):
        options[name] = term is not None
    terms = tuple(x if term is None else term for term in (pair, edge, own))
    return terms, (slope, len(x), heads, width), options
