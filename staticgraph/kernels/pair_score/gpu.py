"""``pair_score`` in Triton: one program per node, no atomic addition.

Forward walks the edges into a node. Backward walks them once by destination (gradients of ``right``
and ``own``, and each node's part of the weight gradient, which torch then sums) and once by source
(gradients of ``left`` and ``edge``).
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import by_row, cells, read, wide_like, write
from staticgraph.kernels.shapes import empty_like


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
    EDGED: tl.constexpr,
    OWNED: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the scores, all heads, of node ``i``'s self-loop and of the edges into it."""
    i = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    place, inside = cells(h, heads, width, BLOCK)
    row = heads * width
    by = read(weight + place, inside, WIDE)
    mine = read(right + i * row + place, inside, WIDE)
    value = mine + read(left + i * row + place, inside, WIDE)
    if OWNED:
        value += read(own + i * row + place, inside, WIDE)
    value = tl.sum(by * tl.where(value > 0, value, slope * value), 1)
    write(loop + i * heads + h, value, known)
    for e in range(tl.load(row_ptr + i).to(tl.int64), tl.load(row_ptr + i + 1).to(tl.int64)):
        j = tl.load(src + e)
        value = mine + read(left + j * row + place, inside, WIDE)
        if EDGED:
            value += read(edge + e * row + place, inside, WIDE)
        value = tl.sum(by * tl.where(value > 0, value, slope * value), 1)
        write(score + e * heads + h, value, known)


@triton.jit
def pair_score_targets(
    grad,
    grad_loop,
    left,
    right,
    weight,
    edge,
    own,
    src,
    row_ptr,
    dright,
    dweight,
    down,
    slope: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    EDGED: tl.constexpr,
    OWNED: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradients of node ``i``'s row as a target and of its self-loop's row, and
    its part of the weight gradient."""
    i = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    place, inside = cells(h, heads, width, BLOCK)
    row = heads * width
    by = read(weight + place, inside, WIDE)
    mine = read(right + i * row + place, inside, WIDE)
    value = mine + read(left + i * row + place, inside, WIDE)
    if OWNED:
        value += read(own + i * row + place, inside, WIDE)
    g = read(grad_loop + i * heads + h, known, WIDE)[:, None]
    to_weight = g * tl.where(value > 0, value, slope * value)
    total = g * tl.where(value > 0, by, slope * by)
    if OWNED:
        write(down + i * row + place, total, inside)
    for e in range(tl.load(row_ptr + i).to(tl.int64), tl.load(row_ptr + i + 1).to(tl.int64)):
        j = tl.load(src + e)
        value = mine + read(left + j * row + place, inside, WIDE)
        if EDGED:
            value += read(edge + e * row + place, inside, WIDE)
        g = read(grad + e * heads + h, known, WIDE)[:, None]
        to_weight += g * tl.where(value > 0, value, slope * value)
        total += g * tl.where(value > 0, by, slope * by)
    write(dright + i * row + place, total, inside)
    tl.store(dweight + i * row + place, to_weight, mask=inside)


@triton.jit
def pair_score_sources(
    grad,
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
    EDGED: tl.constexpr,
    OWNED: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradient of node ``j``'s row as a source, and of the edges out of it."""
    j = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    place, inside = cells(h, heads, width, BLOCK)
    row = heads * width
    by = read(weight + place, inside, WIDE)
    mine = read(left + j * row + place, inside, WIDE)
    value = mine + read(right + j * row + place, inside, WIDE)
    if OWNED:
        value += read(own + j * row + place, inside, WIDE)
    g = read(grad_loop + j * heads + h, known, WIDE)[:, None]
    total = g * tl.where(value > 0, by, slope * by)
    for k in range(tl.load(col_ptr + j), tl.load(col_ptr + j + 1)):
        e = tl.load(transpose + k).to(tl.int64)
        i = tl.load(dst + e)
        value = mine + read(right + i * row + place, inside, WIDE)
        if EDGED:
            value += read(edge + e * row + place, inside, WIDE)
        g = read(grad + e * heads + h, known, WIDE)[:, None]
        part = g * tl.where(value > 0, by, slope * by)
        total += part
        if EDGED:
            write(dedge + e * row + place, part, inside)
    write(dleft + j * row + place, total, inside)


def forward(
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    edge: Tensor | None,
    own: Tensor | None,
    edges: Sequence[Tensor],
    slope: float,
) -> tuple[Tensor, Tensor]:
    """Runs forward in one launch."""
    heads, width = weight.shape
    src, _, row_ptr, _, _ = edges
    score, loop = left.new_empty(len(src), heads), left.new_empty(len(left), heads)
    given, options = _given(left, right, weight, edge, own)
    pair_score_forward[(len(left),)](
        *given, src, row_ptr, score, loop, slope, heads, width, **options
    )
    return score, loop


def backward(
    grad: Tensor,
    grad_loop: Tensor,
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    edge: Tensor | None,
    own: Tensor | None,
    edges: Sequence[Tensor],
    slope: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Runs backward in two launches plus torch's sum over the nodes."""
    heads, width = weight.shape
    src, dst, row_ptr, col_ptr, transpose = edges
    dleft, dright = torch.empty_like(left), torch.empty_like(right)
    dweight = wide_like(left, len(left), heads, width)
    dedge, down = empty_like(edge, left), empty_like(own, left)
    given, options = _given(left, right, weight, edge, own)
    by_target = (src, row_ptr, dright, dweight, down)
    by_source = (dst, col_ptr, transpose, dleft, dedge)
    for kernel, rest in ((pair_score_targets, by_target), (pair_score_sources, by_source)):
        kernel[(len(left),)](grad, grad_loop, *given, *rest, slope, heads, width, **options)
    return dleft, dright, dweight.sum(0).to(weight.dtype), dedge, down


def _given(
    left: Tensor, right: Tensor, weight: Tensor, edge: Tensor | None, own: Tensor | None
) -> tuple[tuple[Tensor, ...], dict[str, object]]:
    """Returns the operands and options that all kernels share."""
    heads, width = weight.shape
    given = left, right, weight, left if edge is None else edge, left if own is None else own
    options = {
        "EDGED": edge is not None,
        "OWNED": own is not None,
        "HEADS": triton.next_power_of_2(heads),
    }
    return given, options | by_row(left.dtype, width, options["HEADS"])
