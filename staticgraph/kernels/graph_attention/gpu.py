"""``graph_attention`` in Triton: one program per tile of a graph and head, no atomic addition.

A graph that fits one tile is one program per head. For a larger graph there is one program per
tile, which walks the tiles of the other side with an online softmax (Dao 2023, arXiv 2307.08691).
Tiles begin where the graph begins, so a graph's result has the same bits whatever else is in the
batch. Backward needs only a row's log-sum-exp: a program accumulates the gradients of its tile as
keys and values, then as queries. The grid is fixed by the bucket, by heads: ``N // T + G`` tiles of
``T`` of its ``N`` rows suffice for ``G`` graphs, since tile ``t`` of the graph that begins at row
``s``, the ``g``-th, is program ``s // T + g + t``, which is before the first of the next graph. All
programs share the clearing of the padding rows, those without a tile included.

Sums are float32. The dropout mask is Philox of seed, row, site, key and head, see
:mod:`staticgraph.kernels.dropout_sum.gpu`.
"""

# Launching a Triton function, with its options by name, is not typed, nor are Triton's sums.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import Launch, block, product, write
from staticgraph.sizes.attention import kernel_tile

# Bytes of a head's row above which backward tiles fill the registers of four warps.
WIDE_HEAD_BYTES = 128


@triton.jit
def own_tile(starts, graphs, TILE: tl.constexpr, GRAPHS: tl.constexpr):
    """Returns where the program's graph begins, how many rows it has, and which of them is the
    first of the program's tile; a program without a tile has none of the graph's rows."""
    program, g = tl.program_id(0), tl.arange(0, GRAPHS)
    begins = tl.load(starts + g, mask=g < graphs, other=0)
    graph = tl.sum(((begins // TILE + g <= program) & (g < graphs)).to(tl.int32), 0) - 1
    begin = tl.load(starts + graph).to(tl.int64)
    n = (tl.load(starts + graph + 1) - begin).to(tl.int32)
    return begin, n, (program - (begin // TILE).to(tl.int32) - graph) * TILE


@triton.jit
def tile_of(values, begin, r, n, STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Loads rows ``r`` of the graph as ``[TILE, BLOCK]``, zeros beyond the graph."""
    c = tl.arange(0, BLOCK)
    here = (r < n)[:, None] & (c < SIZE)[None, :]
    return tl.load(values + (begin + r)[:, None] * STRIDE + c[None, :], mask=here, other=0)


@triton.jit
def put_tile(
    values, begin, r, n, tile, STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Writes ``[TILE, BLOCK]`` to rows ``r`` of the graph; nothing beyond it."""
    c = tl.arange(0, BLOCK)
    here = (r < n)[:, None] & (c < SIZE)[None, :]
    at = values + (begin + r)[:, None] * STRIDE + c[None, :]
    write(at, tile, here)


@triton.jit
def scores_of(q, k, j, n, SCALE: tl.constexpr):
    """Returns scores ``[TILE, TILE]``, minus infinity for keys beyond the graph."""
    scores = product(q, tl.trans(k)) * SCALE
    return tl.where((j < n)[None, :], scores, -float("inf"))


@triton.jit
def stays(seed, begin, i, j, h, site, p):
    """Returns the dropout mask ``[TILE, TILE]`` bool, true for kept weights."""
    none = (i[:, None] * 0 + j[None, :] * 0).to(tl.uint32)
    row = none + (begin + i)[:, None].to(tl.uint32)
    drawn, _, _, _ = tl.philox(
        tl.load(seed), row, none + site, none + j[None, :].to(tl.uint32), none + h
    )
    return tl.uint_to_uniform_float(drawn) >= p


@triton.jit
def query_tile(
    q_at,
    g_at,
    o_at,
    l_at,
    begin,
    i,
    n,
    heads: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Loads queries ``i`` of the graph, their gradients and log-sum-exps, and the means by which
    the gradients of their weights are centred.

    Rows beyond the graph have zero gradients, so their weights have no effect as long as they are
    finite.
    """
    q = tile_of(q_at, begin, i, n, 3 * heads * SIZE, SIZE, BLOCK)
    g = tile_of(g_at, begin, i, n, heads * SIZE, SIZE, BLOCK)
    o = tile_of(o_at, begin, i, n, heads * SIZE, SIZE, BLOCK)
    mean = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    return q, g, mean, tl.load(l_at + i, mask=i < n, other=0)


@triton.jit
def graph_attention_forward(
    rows,
    starts,
    seed,
    out,
    lse,
    nodes,
    graphs,
    site,
    p: tl.constexpr,
    SCALE: tl.constexpr,
    heads: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    GRAPHS: tl.constexpr,
):
    """One program: the outputs and log-sum-exps of a tile of a graph's queries, for one head, over
    all its keys; it also clears its share of the padding rows."""
    STRIDE: tl.constexpr = 3 * heads * SIZE
    program, h = tl.program_id(0), tl.program_id(1)
    r = tl.arange(0, TILE)
    begin, n, first = own_tile(starts, graphs, TILE, GRAPHS)
    if first < n:
        q_at = rows + h * SIZE
        k_at = q_at + heads * SIZE
        v_at = k_at + heads * SIZE
        i = first + r
        q = tile_of(q_at, begin, i, n, STRIDE, SIZE, BLOCK)
        largest = tl.full([TILE], -float("inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        result = tl.zeros([TILE, BLOCK], tl.float32)
        for key in range(0, n, TILE):
            j = key + r
            k = tile_of(k_at, begin, j, n, STRIDE, SIZE, BLOCK)
            v = tile_of(v_at, begin, j, n, STRIDE, SIZE, BLOCK)
            score = scores_of(q, k, j, n, SCALE)
            more = tl.maximum(largest, tl.max(score, 1))
            weight = tl.exp(score - more[:, None])
            before = tl.exp(largest - more)
            total = total * before + tl.sum(weight, 1)
            if seed is not None:
                weight = tl.where(stays(seed, begin, i, j, h, site, p), weight / (1 - p), 0)
            result = result * before[:, None]
            result += product(weight.to(v.dtype), v)
            largest = more
        result = result / total[:, None]
        put_tile(out + h * SIZE, begin, i, n, result, heads * SIZE, SIZE, BLOCK)
        tl.store(lse + h.to(tl.int64) * nodes + begin + i, largest + tl.log(total), mask=i < n)
    padding = tl.load(starts + graphs).to(tl.int64)
    zero = tl.zeros([TILE, BLOCK], tl.float32)
    tiled = tl.num_programs(0).to(tl.int64) * TILE
    for start in range(padding + program.to(tl.int64) * TILE, nodes, tiled):
        put_tile(out + h * SIZE, start, r, nodes - start, zero, heads * SIZE, SIZE, BLOCK)


@triton.jit
def graph_attention_backward(
    grad,
    rows,
    out,
    lse,
    starts,
    seed,
    drows,
    nodes,
    graphs,
    site,
    p: tl.constexpr,
    SCALE: tl.constexpr,
    heads: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    GRAPHS: tl.constexpr,
):
    """One program: the gradients of a tile of a graph, for one head.

    They are computed as keys and values over all queries, then as queries over all keys. The
    program also clears its share of the padding rows.
    """
    STRIDE: tl.constexpr = 3 * heads * SIZE
    program, h = tl.program_id(0), tl.program_id(1)
    r = tl.arange(0, TILE)
    begin, n, first = own_tile(starts, graphs, TILE, GRAPHS)
    q_at = rows + h * SIZE
    k_at = q_at + heads * SIZE
    v_at = k_at + heads * SIZE
    g_at = grad + h * SIZE
    o_at = out + h * SIZE
    l_at = lse + h.to(tl.int64) * nodes + begin
    dq_at = drows + h * SIZE
    dk_at = dq_at + heads * SIZE
    dv_at = dk_at + heads * SIZE
    if first < n:
        j = first + r
        k = tile_of(k_at, begin, j, n, STRIDE, SIZE, BLOCK)
        v = tile_of(v_at, begin, j, n, STRIDE, SIZE, BLOCK)
        dk = tl.zeros([TILE, BLOCK], tl.float32)
        dv = tl.zeros([TILE, BLOCK], tl.float32)
        for query in range(0, n, TILE):
            i = query + r
            q, g, mean, height = query_tile(q_at, g_at, o_at, l_at, begin, i, n, heads, SIZE, BLOCK)
            weight = tl.exp(scores_of(q, k, j, n, SCALE) - height[:, None])
            by_weight = product(g, tl.trans(v))
            share = weight
            if seed is not None:
                keep = stays(seed, begin, i, j, h, site, p)
                share = tl.where(keep, weight / (1 - p), 0)
                by_weight = tl.where(keep, by_weight / (1 - p), 0)
            dv += product(tl.trans(share.to(g.dtype)), g)
            by_score = (weight * (by_weight - mean[:, None])).to(q.dtype)
            dk += product(tl.trans(by_score), q)
        put_tile(dk_at, begin, j, n, dk * SCALE, STRIDE, SIZE, BLOCK)
        put_tile(dv_at, begin, j, n, dv, STRIDE, SIZE, BLOCK)
        i = first + r
        q, g, mean, height = query_tile(q_at, g_at, o_at, l_at, begin, i, n, heads, SIZE, BLOCK)
        dq = tl.zeros([TILE, BLOCK], tl.float32)
        for key in range(0, n, TILE):
            j = key + r
            k = tile_of(k_at, begin, j, n, STRIDE, SIZE, BLOCK)
            v = tile_of(v_at, begin, j, n, STRIDE, SIZE, BLOCK)
            weight = tl.exp(scores_of(q, k, j, n, SCALE) - height[:, None])
            by_weight = product(g, tl.trans(v))
            if seed is not None:
                keep = stays(seed, begin, i, j, h, site, p)
                by_weight = tl.where(keep, by_weight / (1 - p), 0)
            by_score = (weight * (by_weight - mean[:, None])).to(k.dtype)
            dq += product(by_score, k)
        put_tile(dq_at, begin, i, n, dq * SCALE, STRIDE, SIZE, BLOCK)
    padding = tl.load(starts + graphs).to(tl.int64)
    zero = tl.zeros([TILE, BLOCK], tl.float32)
    tiled = tl.num_programs(0).to(tl.int64) * TILE
    for start in range(padding + program.to(tl.int64) * TILE, nodes, tiled):
        put_tile(dq_at, start, r, nodes - start, zero, STRIDE, SIZE, BLOCK)
        put_tile(dk_at, start, r, nodes - start, zero, STRIDE, SIZE, BLOCK)
        put_tile(dv_at, start, r, nodes - start, zero, STRIDE, SIZE, BLOCK)


def _options(rows: Tensor, starts: Tensor, heads: int, longest: int) -> dict[str, Any]:
    size, graphs = rows.size(1) // (3 * heads), len(starts) - 1
    tile = kernel_tile(longest, size)
    return {
        "grid": (len(rows) // tile + graphs, heads),
        "nodes": len(rows),
        "graphs": graphs,
        "GRAPHS": triton.next_power_of_2(graphs),
        "SCALE": size**-0.5,
        "SIZE": size,
        "TILE": tile,
        "BLOCK": block(size),
        # One stage: most graphs are a single tile, so there is no next tile to prefetch.
        "num_stages": 1,
        "num_warps": 8 if size * rows.element_size() > WIDE_HEAD_BYTES else 4,
    }


forward: Launch = Launch(graph_attention_forward, options=_options)
backward: Launch = Launch(graph_attention_backward, options=_options)
