"""``pair_score`` in Triton: one program per node, no atomic addition.

Forward walks the edges into a node. Backward walks them once by destination (gradients of ``right``
and ``own``, and each node's part of the weight gradient, which torch then sums) and once by source
(gradients of ``left`` and ``edge``).
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import Launch, by_row, own_heads, read, span, wide_like, write


@triton.jit
def summed(mine, rows, r, edge, e, row, place, mask, WIDE: tl.constexpr):
    """Returns the sum of a row, of row ``r``, and of row ``e`` of an edge operand if there is
    one."""
    value = mine + read(rows + r * row + place, mask, WIDE)
    if edge is not None:
        value += read(edge + e * row + place, mask, WIDE)
    return value


@triton.jit
def activated(value, by, slope):
    """Returns ``by`` times the derivative of the leaky ReLU at ``value``."""
    return tl.where(value > 0, by, slope * by)


@triton.jit
def pair_score_forward(
    left,
    right,
    weight,
    edge,
    own,
    src,
    row_ptr,
    score,
    loop,
    slope: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the scores, all heads, of node ``i``'s self-loop and of the edges into it."""
    i, h, known, place, inside = own_heads(heads, width, HEADS, BLOCK)
    row = heads * width
    by = read(weight + place, inside, WIDE)
    mine = read(right + i * row + place, inside, WIDE)
    value = summed(mine, left, i, own, i, row, place, inside, WIDE)
    value = tl.sum(by * activated(value, value, slope), 1)
    write(loop + i * heads + h, value, known)
    first, last = span(row_ptr, i)
    for e in range(first, last):
        j = tl.load(src + e)
        value = summed(mine, left, j, edge, e, row, place, inside, WIDE)
        value = tl.sum(by * activated(value, value, slope), 1)
        write(score + e * heads + h, value, known)


@triton.jit
def pair_score_targets(
    grad_score,
    grad_loop,
    left,
    right,
    weight,
    edge,
    own,
    src,
    row_ptr,
    dright,
    partial,
    down,
    slope: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradients of node ``i``'s row as a target and of its self-loop's row, and
    its part of the weight gradient."""
    i, h, known, place, inside = own_heads(heads, width, HEADS, BLOCK)
    row = heads * width
    by = read(weight + place, inside, WIDE)
    mine = read(right + i * row + place, inside, WIDE)
    value = summed(mine, left, i, own, i, row, place, inside, WIDE)
    g = read(grad_loop + i * heads + h, known, WIDE)[:, None]
    to_weight = g * activated(value, value, slope)
    total = g * activated(value, by, slope)
    if own is not None:
        write(down + i * row + place, total, inside)
    first, last = span(row_ptr, i)
    for e in range(first, last):
        j = tl.load(src + e)
        value = summed(mine, left, j, edge, e, row, place, inside, WIDE)
        g = read(grad_score + e * heads + h, known, WIDE)[:, None]
        to_weight += g * activated(value, value, slope)
        total += g * activated(value, by, slope)
    write(dright + i * row + place, total, inside)
    tl.store(partial + i * row + place, to_weight, mask=inside)


@triton.jit
def pair_score_sources(
    grad_score,
    grad_loop,
    left,
    right,
    weight,
    edge,
    own,
    dst,
    col_ptr,
    transpose,
    dleft,
    dedge,
    slope: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradient of node ``j``'s row as a source, and of the edges out of it."""
    j, h, known, place, inside = own_heads(heads, width, HEADS, BLOCK)
    row = heads * width
    by = read(weight + place, inside, WIDE)
    mine = read(left + j * row + place, inside, WIDE)
    value = summed(mine, right, j, own, j, row, place, inside, WIDE)
    g = read(grad_loop + j * heads + h, known, WIDE)[:, None]
    total = g * activated(value, by, slope)
    for k in range(tl.load(col_ptr + j), tl.load(col_ptr + j + 1)):
        e = tl.load(transpose + k).to(tl.int64)
        i = tl.load(dst + e)
        value = summed(mine, right, i, edge, e, row, place, inside, WIDE)
        g = read(grad_score + e * heads + h, known, WIDE)[:, None]
        part = g * activated(value, by, slope)
        total += part
        if edge is not None:
            write(dedge + e * row + place, part, inside)
    write(dleft + j * row + place, total, inside)


def _options(left: Tensor, weight: Tensor) -> dict[str, Any]:
    heads, width = weight.shape
    rows = triton.next_power_of_2(heads)
    options = by_row(left.dtype, width, rows)
    return {"grid": (len(left),), "heads": heads, "HEADS": rows, **options}


forward: Launch = Launch(pair_score_forward, options=_options)


def _backward_options(left: Tensor, weight: Tensor) -> dict[str, Any]:
    return {"partial": wide_like(left, len(left), *weight.shape), **_options(left, weight)}


def _sum_weights(results: tuple[Tensor, ...], named: dict[str, Any]) -> tuple[Tensor, ...]:
    dleft, dright, dweight, *rest = results
    return dleft, dright, named["partial"].sum(0).to(dweight.dtype), *rest


backward: Launch = Launch(
    pair_score_targets, pair_score_sources, options=_backward_options, finish=_sum_weights
)
