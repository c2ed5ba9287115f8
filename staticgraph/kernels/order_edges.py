"""``order_edges`` on CUDA: edges by their nodes, in two launches where there are few.

A sort in torch takes several launches, most of them for numbers far larger than nodes have. Here a
program counts the edges of nodes before its own, which is where its own begin, and then writes
these in their order: every program reads all edges, so it is for few of them.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.internals.dispatch import assert_async

# Edges times nodes, above which torch sorts: 144 MiB are read then, over and over the same. By
# count, not measured.
MAX_WORK = 1 << 24
NODES, BLOCK = 4, 512


@triton.jit
def node_of(ends, edge, here, nodes):
    """The ends of edges, and 1 where one is no node: it counts as the first or the last, so that
    every place is written."""
    end = tl.load(ends + edge, mask=here, other=0)
    inside = tl.maximum(tl.minimum(end, nodes - 1), 0)
    return inside.to(tl.int32), (end != inside).to(tl.int32)


@triton.jit
def order_edges_at_one_end(
    ends,
    through,
    ptr,
    places,
    inside,
    edges,
    nodes,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the edges of a few nodes, in the order of ``through``, or in their own."""
    v = tl.program_id(0) * NODES + tl.arange(0, NODES)
    place = tl.zeros([NODES], tl.int32)
    outside = 0
    for first in range(0, edges, BLOCK):
        k = first + tl.arange(0, BLOCK)
        end, wrong = node_of(ends, k, k < edges, nodes)
        outside += tl.sum(wrong, 0)  # pyright: ignore[reportOperatorIssue]
        before = end[None, :] < v[:, None]
        place += tl.sum((before & (k < edges)[None, :]).to(tl.int32), 1)
    tl.store(ptr + v, place, mask=v <= nodes)
    for first in range(0, edges, BLOCK):
        k = first + tl.arange(0, BLOCK)
        edge = k
        if through is not None:
            edge = tl.load(through + k, mask=k < edges, other=0)
        end, _ = node_of(ends, edge, k < edges, nodes)
        ours = ((end[None, :] == v[:, None]) & (k < edges)[None, :]).to(tl.int32)
        at = place[:, None] + tl.cumsum(ours, 1) - ours
        tl.store(places + at, edge[None, :] + 0 * at, mask=ours > 0)
        place += tl.sum(ours, 1)
    if outside > 0:
        tl.store(inside, False)


def on_cuda(src: Tensor, dst: Tensor, sources: int, targets: int) -> list[Tensor]:
    """As on a CPU; an end that is no node raises when torch synchronises."""
    few = len(src) * max(sources, targets) <= MAX_WORK
    *arrays, inside = (_by_counts if few else _by_sorts)(src, dst, sources, targets)
    assert_async(inside, f"an edge joins a node outside of {sources}, {targets}")
    return arrays


def _by_counts(src: Tensor, dst: Tensor, sources: int, targets: int) -> list[Tensor]:
    inside = torch.ones((), dtype=torch.bool, device=src.device)
    row_ptr, order = _at_one_end(dst, None, targets, inside)
    col_ptr, transpose = _at_one_end(src, order, sources, inside)
    return [row_ptr, col_ptr, transpose, order, inside]


def _at_one_end(
    ends: Tensor, through: Tensor | None, nodes: int, inside: Tensor
) -> tuple[Tensor, Tensor]:
    """Pointers of nodes and the edges that they point at; sets ``inside`` to False if an end is no
    node."""
    ptr, places = (ends.new_empty(n, dtype=torch.int32) for n in (nodes + 1, len(ends)))
    order_edges_at_one_end[(triton.cdiv(nodes + 1, NODES),)](
        ends, through, ptr, places, inside, len(ends), nodes, NODES, BLOCK, num_warps=8
    )
    return ptr, places


def _by_sorts(src: Tensor, dst: Tensor, sources: int, targets: int) -> list[Tensor]:
    counts = sources, targets
    inside = [((e >= 0) & (e < n)).all() for e, n in zip((src, dst), counts, strict=True)]
    every = torch.arange(max(counts) + 1, device=src.device)
    ends, order = dst.sort(stable=True)
    starts, places = src[order].sort(stable=True)
    pointers = (
        torch.searchsorted(ends, every[: targets + 1]),
        torch.searchsorted(starts, every[: sources + 1]),
    )
    arrays = [array.int() for array in (*pointers, order[places], order)]
    return [*arrays, inside[0] & inside[1]]
