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

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import Launch, by_row, own_heads, read, span, write


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
    zero,
):
    """Returns the scores ``[HEADS]`` of an edge, before the leaky ReLU."""
    value = zero
    known = h < heads
    if pair is not None:
        at = pair + h.to(tl.int64) * 2 * nodes
        value += read(at + 2 * j, known, zero.dtype)
        value += read(at + 2 * i + 1, known, zero.dtype)
    if edge is not None:
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
    loops: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the output row of node ``i``, all heads, and the weights of the edges into
    it."""
    i, h, known, place, inside = own_heads(heads, width, HEADS, BLOCK)
    zero = tl.zeros([HEADS], WIDE)
    first, last = span(row_ptr, i)
    largest = zero - float("inf")
    total = zero
    if loops:
        largest = score_of(pair, own, i, i, i, nodes, heads, h, zero)
        largest = tl.where(largest > 0, largest, slope * largest)
        total = zero + 1
    mine = largest
    for e in range(first, last):
        j = tl.load(src + e)
        value = score_of(pair, edge, e, j, i, nodes, heads, h, zero)
        value = tl.where(value > 0, value, slope * value)
        if loops:
            value = tl.where(j == i, -float("inf"), value)
        more = tl.where(largest > value, largest, value)  # NaN propagates
        # If equal to the maximum the factor is one, also where both are minus infinity.
        total = total * tl.where(largest == more, 1, tl.exp(largest - more))
        total += tl.where(value == more, 1, tl.exp(value - more))
        largest = more
    result = tl.zeros([HEADS, BLOCK], WIDE)
    if loops:
        part = tl.exp(mine - largest) / total
        tl.store(own_share + i * heads + h, part, mask=known)
        row = read(x + i * heads * width + place, inside, WIDE)
        result = part[:, None] * row
    for e in range(first, last):
        j = tl.load(src + e)
        value = score_of(pair, edge, e, j, i, nodes, heads, h, zero)
        value = tl.where(value > 0, value, slope * value)
        part = tl.exp(value - largest) / total
        if loops:
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
    loops: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradients of node ``j``'s row, all heads, of its score term as a source, and
    of the scores of the edges out of it."""
    j, h, known, place, inside = own_heads(heads, width, HEADS, BLOCK)
    zero = tl.zeros([HEADS], WIDE)
    row = read(x + j * heads * width + place, inside, WIDE)
    result = tl.zeros([HEADS, BLOCK], WIDE)
    as_source = zero
    if loops:
        g = read(grad + j * heads * width + place, inside, WIDE)
        o = read(out + j * heads * width + place, inside, WIDE)
        part = tl.load(own_share + j * heads + h, mask=known, other=0)
        result += part[:, None] * g
        value = part * tl.sum(g * (row - o), 1)
        score = score_of(pair, own, j, j, j, nodes, heads, h, zero)
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
        score = score_of(pair, edge, e, j, i, nodes, heads, h, zero)
        value = tl.where(score > 0, value, slope * value)
        as_source += value
        write(dedge + e * heads + h, value, known)
    write(dx + j * heads * width + place, result, inside)
    if pair is not None:
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
    loops: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
):
    """One program: the gradient of node ``i``'s score term as a target, summed over the edges into
    it."""
    i = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    total = tl.zeros([HEADS], WIDE)
    if loops:
        total += read(down + i * heads + h, known, WIDE)
    first, last = span(row_ptr, i)
    for e in range(first, last):
        total += read(dedge + e * heads + h, known, WIDE)
    at = dpair + h.to(tl.int64) * 2 * nodes + 2 * i + 1
    write(at, total, known)


def _options(x: Tensor, heads: int) -> dict[str, Any]:
    rows = triton.next_power_of_2(heads)
    options = by_row(x.dtype, x.size(1) // heads, rows)
    return {"grid": (len(x),), "nodes": len(x), "HEADS": rows, **options}


def _sum_targets(results: tuple[Tensor, ...], named: dict[str, Any]) -> tuple[Tensor, ...]:
    if named["pair"] is not None:
        kernel = neighbour_attention_targets
        kernel[named["grid"]](*(named[name] for name in kernel.arg_names), num_warps=1)
    return results


forward: Launch = Launch(neighbour_attention_forward, options=_options)
backward: Launch = Launch(neighbour_attention_sources, options=_options, finish=_sum_targets)
