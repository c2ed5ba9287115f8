"""``dot_attention`` in Triton: one program per node, no atomic addition.

Forward makes one pass over the edges into a node with an online softmax: the weighted sum is scaled
by the largest score so far and rescaled when a larger one appears. Scores are stored on the way and
turned into attention weights once the maximum and the sum are known. Backward walks the edges out
of a node through the transpose (gradients of its key, its value, each edge's rows and each score),
and a second launch walks the edges into it (gradient of its query). The gradient of a score needs
only ``grad . (v_j - out_i)``, since the mean of ``grad . v`` under the weights is ``grad . out``.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import block, cells, read, span, warps, wide, wide_like, write
from staticgraph.kernels.table_sum import gpu as tables


@triton.jit
def dot_attention_forward(
    query,
    key,
    value,
    edge,
    src,
    row_ptr,
    out,
    share,
    scale: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    columns: tl.constexpr,
    KEYED: tl.constexpr,
    VALUED: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the output row of node ``i``, all heads, and the weights of the edges into
    it."""
    i = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    place, inside = cells(h, heads, width, BLOCK)
    spot, within = cells(h, heads, columns, COLUMNS)
    first, last = span(row_ptr, i)
    mine = read(query + i * heads * width + place, inside, WIDE)
    largest = tl.zeros([HEADS], WIDE) - float("inf")
    total = tl.zeros([HEADS], WIDE)
    result = tl.zeros([HEADS, COLUMNS], WIDE)
    for e in range(first, last):
        j = tl.load(src + e)
        row = read(key + j * heads * width + place, inside, WIDE)
        if KEYED:
            row += read(edge + e * heads * width + place, inside, WIDE)
        score = tl.sum(mine * row, 1) * scale
        tl.store(share + e * heads + h, score, mask=known)
        more = tl.where(largest > score, largest, score)  # NaN propagates
        # If equal to the maximum the factor is one, also where both are minus infinity.
        before = tl.where(largest == more, 1, tl.exp(largest - more))
        part = tl.where(score == more, 1, tl.exp(score - more))
        row = read(value + j * heads * columns + spot, within, WIDE)
        if VALUED:
            row += read(edge + e * heads * columns + spot, within, WIDE)
        result = result * before[:, None] + part[:, None] * row
        total = total * before + part
        largest = more
    total = tl.where(total == 0, 1, total)  # a node without edges
    result = result / total[:, None]
    write(out + i * heads * columns + spot, result, within)
    tl.debug_barrier()  # other threads' stores are read below
    for e in range(first, last):
        score = tl.load(share + e * heads + h, mask=known, other=0)
        part = tl.where(score == largest, 1, tl.exp(score - largest)) / total
        tl.store(share + e * heads + h, part, mask=known)


@triton.jit
def dot_attention_sources(
    grad,
    query,
    key,
    value,
    edge,
    out,
    share,
    dst,
    col_ptr,
    transpose,
    dkey,
    dvalue,
    dedge,
    dscore,
    scale: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    columns: tl.constexpr,
    KEYED: tl.constexpr,
    VALUED: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the gradients of node ``j``'s key and value, all heads, and of the rows and
    scores of the edges out of it."""
    j = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    place, inside = cells(h, heads, width, BLOCK)
    spot, within = cells(h, heads, columns, COLUMNS)
    row = read(value + j * heads * columns + spot, within, WIDE)
    to_key = tl.zeros([HEADS, BLOCK], WIDE)
    to_value = tl.zeros([HEADS, COLUMNS], WIDE)
    for k in range(tl.load(col_ptr + j), tl.load(col_ptr + j + 1)):
        e = tl.load(transpose + k).to(tl.int64)
        i = tl.load(dst + e)
        g = read(grad + i * heads * columns + spot, within, WIDE)
        apart = row - read(out + i * heads * columns + spot, within, WIDE)
        if VALUED:
            apart += read(edge + e * heads * columns + spot, within, WIDE)
        part = tl.load(share + e * heads + h, mask=known, other=0)
        slope = scale * part * tl.sum(g * apart, 1)
        tl.store(dscore + e * heads + h, slope, mask=known)
        theirs = read(query + i * heads * width + place, inside, WIDE)
        by_key = slope[:, None] * theirs
        by_value = part[:, None] * g
        to_key += by_key
        to_value += by_value
        if KEYED:
            both = by_key
            if VALUED:
                both += by_value  # keys and values read the same edge columns
            to = dedge + e * heads * width + place
            write(to, both, inside)
        elif VALUED:
            to = dedge + e * heads * columns + spot
            write(to, by_value, within)
    write(dkey + j * heads * width + place, to_key, inside)
    to = dvalue + j * heads * columns + spot
    write(to, to_value, within)


@triton.jit
def dot_attention_targets(
    dscore,
    key,
    edge,
    src,
    row_ptr,
    dquery,
    heads: tl.constexpr,
    width: tl.constexpr,
    KEYED: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradient of node ``i``'s query, all heads, from the scores of the edges into
    it."""
    i = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)
    known = h < heads
    place, inside = cells(h, heads, width, BLOCK)
    total = tl.zeros([HEADS, BLOCK], WIDE)
    for e in range(tl.load(row_ptr + i).to(tl.int64), tl.load(row_ptr + i + 1).to(tl.int64)):
        j = tl.load(src + e)
        row = read(key + j * heads * width + place, inside, WIDE)
        if KEYED:
            row += read(edge + e * heads * width + place, inside, WIDE)
        slope = tl.load(dscore + e * heads + h, mask=known, other=0)
        total += slope[:, None] * row
    write(dquery + i * heads * width + place, total, inside)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    edges: Sequence[Tensor],
    heads: int,
    scale: float,
    to_key: bool,
    to_value: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Runs forward in one launch, plus a gather if edges read a table."""
    src, _, row_ptr, _, _ = edges
    out, share = torch.empty_like(value, dtype=dtype), wide_like(query, len(src), heads)
    sizes, options = _sizes(query, value, heads)
    dot_attention_forward[(len(query),)](
        query,
        key,
        value,
        _each(query, edge, code),
        src,
        row_ptr,
        out,
        share,
        scale,
        *sizes,
        KEYED=to_key,
        VALUED=to_value,
        COLUMNS=block(sizes[2]),
        **options,
    )
    return out, share


def backward(
    grad: Tensor,
    out: Tensor,
    share: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    edges: Sequence[Tensor],
    heads: int,
    scale: float,
    to_key: bool,
    to_value: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs backward in two launches, plus a gather and the table's sum if edges read a table."""
    src, dst, row_ptr, col_ptr, transpose = edges
    dquery, dkey, dvalue = (torch.empty_like(one) for one in (query, key, value))
    each, dscore = _each(query, edge, code), torch.empty_like(share)
    dedge = query.new_empty(0, 0) if edge is None else torch.empty_like(each)
    sizes, options = _sizes(query, value, heads)
    dot_attention_sources[(len(query),)](
        grad,
        query,
        key,
        value,
        each,
        out,
        share,
        dst,
        col_ptr,
        transpose,
        dkey,
        dvalue,
        dedge,
        dscore,
        scale,
        *sizes,
        KEYED=to_key,
        VALUED=to_value,
        COLUMNS=block(sizes[2]),
        **options,
    )
    dot_attention_targets[(len(query),)](
        dscore, key, each, src, row_ptr, dquery, *sizes[:2], KEYED=to_key, **options
    )
    if edge is not None and code is not None:
        dedge = tables.backward(dedge, code.view(-1, 1), None, len(edge))
    return dquery, dkey, dvalue, dedge


def _each(query: Tensor, edge: Tensor | None, code: Tensor | None) -> Tensor:
    """Returns the edge operand with one row per edge, ``[E, H * C]``; a placeholder without one."""
    if edge is None:
        return query
    return edge if code is None else edge.index_select(0, code)


def _sizes(
    query: Tensor, value: Tensor, heads: int
) -> tuple[tuple[int, int, int], dict[str, object]]:
    """Returns heads and the columns of each, and the options that all kernels share."""
    width, columns = query.size(1) // heads, value.size(1) // heads
    rows = triton.next_power_of_2(heads)
    options = {"WIDE": wide(query.dtype), "HEADS": rows, "BLOCK": block(width)}
    options["num_warps"] = warps(rows * max(block(width), block(columns)))
    return (heads, width, columns), options
