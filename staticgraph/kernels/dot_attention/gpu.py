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

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import (
    Launch,
    block,
    cells,
    own_heads,
    read,
    span,
    warps,
    wide,
    write,
)
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
    to_key: tl.constexpr,
    to_value: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the output row of node ``i``, all heads, and the weights of the edges into
    it."""
    i, h, known, place, inside = own_heads(heads, width, HEADS, BLOCK)
    spot, within = cells(h, heads, columns, COLUMNS)
    first, last = span(row_ptr, i)
    mine = read(query + i * heads * width + place, inside, WIDE)
    largest = tl.zeros([HEADS], WIDE) - float("inf")
    total = tl.zeros([HEADS], WIDE)
    result = tl.zeros([HEADS, COLUMNS], WIDE)
    for e in range(first, last):
        j = tl.load(src + e)
        row = read(key + j * heads * width + place, inside, WIDE)
        if to_key:
            row += read(edge + e * heads * width + place, inside, WIDE)
        score = tl.sum(mine * row, 1) * scale
        tl.store(share + e * heads + h, score, mask=known)
        more = tl.where(largest > score, largest, score)  # NaN propagates
        # If equal to the maximum the factor is one, also where both are minus infinity.
        before = tl.where(largest == more, 1, tl.exp(largest - more))
        part = tl.where(score == more, 1, tl.exp(score - more))
        row = read(value + j * heads * columns + spot, within, WIDE)
        if to_value:
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
    to_key: tl.constexpr,
    to_value: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the gradients of node ``j``'s key and value, all heads, and of the rows and
    scores of the edges out of it."""
    j, h, known, place, inside = own_heads(heads, width, HEADS, BLOCK)
    spot, within = cells(h, heads, columns, COLUMNS)
    row = read(value + j * heads * columns + spot, within, WIDE)
    key_slope = tl.zeros([HEADS, BLOCK], WIDE)
    value_slope = tl.zeros([HEADS, COLUMNS], WIDE)
    for k in range(tl.load(col_ptr + j), tl.load(col_ptr + j + 1)):
        e = tl.load(transpose + k).to(tl.int64)
        i = tl.load(dst + e)
        g = read(grad + i * heads * columns + spot, within, WIDE)
        apart = row - read(out + i * heads * columns + spot, within, WIDE)
        if to_value:
            apart += read(edge + e * heads * columns + spot, within, WIDE)
        part = tl.load(share + e * heads + h, mask=known, other=0)
        slope = scale * part * tl.sum(g * apart, 1)
        tl.store(dscore + e * heads + h, slope, mask=known)
        theirs = read(query + i * heads * width + place, inside, WIDE)
        by_key = slope[:, None] * theirs
        by_value = part[:, None] * g
        key_slope += by_key
        value_slope += by_value
        if to_key:
            both = by_key
            if to_value:
                both += by_value  # keys and values read the same edge columns
            to = dedge + e * heads * width + place
            write(to, both, inside)
        elif to_value:
            to = dedge + e * heads * columns + spot
            write(to, by_value, within)
    write(dkey + j * heads * width + place, key_slope, inside)
    to = dvalue + j * heads * columns + spot
    write(to, value_slope, within)


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
    to_key: tl.constexpr,
    WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradient of node ``i``'s query, all heads, from the scores of the edges into
    it."""
    i, h, known, place, inside = own_heads(heads, width, HEADS, BLOCK)
    total = tl.zeros([HEADS, BLOCK], WIDE)
    first, last = span(row_ptr, i)
    for e in range(first, last):
        j = tl.load(src + e)
        row = read(key + j * heads * width + place, inside, WIDE)
        if to_key:
            row += read(edge + e * heads * width + place, inside, WIDE)
        slope = tl.load(dscore + e * heads + h, mask=known, other=0)
        total += slope[:, None] * row
    write(dquery + i * heads * width + place, total, inside)


def _options(
    query: Tensor, value: Tensor, edge: Tensor | None, code: Tensor | None, heads: int
) -> dict[str, Any]:
    """Returns the options that all kernels share, and the edge operand with one row per edge."""
    width, columns = query.size(1) // heads, value.size(1) // heads
    rows = triton.next_power_of_2(heads)
    return {
        "grid": (len(query),),
        "edge": edge if edge is None or code is None else edge.index_select(0, code),
        "width": width,
        "columns": columns,
        "WIDE": wide(query.dtype),
        "HEADS": rows,
        "BLOCK": block(width),
        "COLUMNS": block(columns),
        "num_warps": warps(rows * max(block(width), block(columns))),
    }


def _backward_options(
    query: Tensor,
    value: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    heads: int,
    share: Tensor,
    dedge: Tensor,
) -> dict[str, Any]:
    options = _options(query, value, edge, code, heads)
    options["dscore"] = torch.empty_like(share)
    options["dedge"] = dedge if code is None else torch.empty_like(options["edge"])
    return options


def _sum_tables(results: tuple[Tensor, ...], named: dict[str, Any]) -> tuple[Tensor, ...]:
    if named["code"] is None:
        return results
    *others, table = results
    codes = named["code"].view(-1, 1)
    return *others, tables.backward(named["dedge"], codes, None, len(table))


forward: Launch = Launch(dot_attention_forward, options=_options)
backward: Launch = Launch(
    dot_attention_sources,
    dot_attention_targets,
    options=_backward_options,
    finish=_sum_tables,
)
