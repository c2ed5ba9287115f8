"""How large the k-th largest graph of a batch is, and batches that respect that bound.

The problem: attention in blocks by size pays for the largest graph that can occur at each position
of a batch sorted by descending size. From a bucket's limits alone the ``k``-th graph has up to
``N / k`` nodes; in the data it has far fewer, since huge graphs are rare: on ogbg-molhiv's batches
of 128 the blocks need 5% of the dense entries by what the data shows, against 26% by the limits
(the module's tests count both). The idea: draw batches, take for each ``k`` a width that hardly any
batch exceeds, and promise it (:attr:`Capacity.order_statistics`). The invariant: the promise holds
for every batch. A batch that breaks it goes to the first bucket that can hold it, and where no
bucket can, it is halved until each part fits one; a single graph keeps every promise, since the
first width is that of the largest graph. Both cases are counted, and no graph is lost.

It does not cover batches of a varying number of graphs; their bucket has only the limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from staticgraph.sizes.attention import (
    ENTRIES_A_BLOCK,
    MAX_BLOCKS,
    WORTH_IT,
    AttentionBlock,
    charged,
)
from staticgraph.sizes.attention import blocks_of as blocks_by_limits
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray

# Batches drawn to estimate the order statistics, and the share of them that may exceed one; each
# such batch gives a graph to another one, so a few in a thousand hardly affect how graphs mix.
DRAWN = 2000
WIDER = 0.001
# Positions at which a block may begin, in geometric progression; every position if fewer than this.
FEW_FIRSTS = 160


def likely_order_statistics(
    nodes: IntArray, batch_size: int, capacity: Capacity, seed: int
) -> tuple[tuple[int, int], ...]:
    """Bounds on the order statistics of nearly every batch; empty where they save too little.

    Args:
        nodes: ``[n]`` int64, the node counts of the training graphs.
        batch_size: graphs in each batch.
        capacity: the bucket, whose limits hold as well.
        seed: of the draws.
    """
    random = np.random.default_rng(seed)
    drawn = random.choice(nodes, (DRAWN, batch_size))  # replacement hardly widens any
    falling = -np.sort(-drawn, axis=1)
    limits = capacity.node_limit // np.arange(1, capacity.graphs + 1)
    widths = np.zeros(capacity.graphs, np.int64)
    widths[:batch_size] = np.quantile(falling, 1 - WIDER, axis=0, method="higher")
    widths = np.minimum(np.minimum(widths, limits), capacity.max_graph_nodes).clip(min=1)
    widths[0] = capacity.max_graph_nodes
    bounds = _cheapest_cuts(np.minimum.accumulate(widths))
    limited, promised = (
        charged(sum(b.places * b.width for b in blocks), len(blocks))
        for blocks in (blocks_by_limits(capacity), _blocks(bounds, capacity.graphs))
    )
    return bounds if len(bounds) > 1 and 100 * promised < WORTH_IT * limited else ()


def keep_order_statistics(
    batches: Sequence[tuple[int, IntArray]], sizes: IntArray, capacities: Sequence[Capacity]
) -> tuple[list[tuple[int, IntArray]], int, int]:
    """Assigns the batches to buckets whose promises they keep.

    Args:
        batches: for each batch, its bucket and the positions of its graphs, ``[g]`` int64.
        sizes: ``[n, C]`` int64.
        capacities: the buckets' capacities.

    Returns:
        The batches in their order, how many changed buckets, and how many were split.
    """
    kept: list[tuple[int, IntArray]] = []
    spilled = split = 0
    for bucket, ids in batches:
        if capacities[bucket].order_statistics_hold(sizes[ids, 0]):
            kept.append((bucket, ids))
            continue
        parts = _parts(ids, sizes, capacities)
        spilled += len(parts) == 1
        split += len(parts) > 1
        kept.extend(parts)
    return kept, spilled, split


def _parts(
    ids: IntArray, sizes: IntArray, capacities: Sequence[Capacity]
) -> list[tuple[int, IntArray]]:
    """The graphs in the first bucket that holds them all, else each half treated the same way."""
    totals, nodes = sizes[ids].sum(axis=0), sizes[ids, 0]
    for bucket, capacity in enumerate(capacities):
        fits = len(ids) <= capacity.graph_limit and nodes.max() <= capacity.max_graph_nodes
        if (
            fits
            and (totals <= capacity.size_limits).all()
            and capacity.order_statistics_hold(nodes)
        ):
            return [(bucket, ids)]
    assert len(ids) > 1, "a graph alone keeps every promise"
    half = len(ids) // 2
    return [*_parts(ids[:half], sizes, capacities), *_parts(ids[half:], sizes, capacities)]


def _cheapest_cuts(widths: IntArray) -> tuple[tuple[int, int], ...]:
    """Cuts the descending sizes into at most :data:`MAX_BLOCKS` blocks, each as wide as its first
    graph, so that entries plus a charge per block are minimal: a shortest path over the cuts."""
    graphs = len(widths)
    spread = np.geomspace(1, graphs, FEW_FIRSTS).astype(np.int64)
    firsts = np.arange(graphs) if graphs <= FEW_FIRSTS else np.unique(np.append(0, spread[:-1]))
    ends = np.append(firsts[1:], graphs)
    # step[i, j]: one block of the graphs from firsts[i] to ends[j], exclusive.
    step = (ends[None, :] - firsts[:, None]) * widths[firsts][:, None] ** 2.0 + ENTRIES_A_BLOCK
    step[ends[None, :] <= firsts[:, None]] = np.inf
    cost, before = [step[0]], []
    for _ in range(MAX_BLOCKS - 1):
        reached = np.append(np.inf, cost[-1][:-1])  # everything before block i is covered
        total = reached[:, None] + step
        before.append(total.argmin(axis=0))
        cost.append(total.min(axis=0))
    blocks = int(np.argmin([each[-1] for each in cost]))
    cuts, end = [], len(firsts) - 1
    for taken in range(blocks, 0, -1):
        begin = int(before[taken - 1][end])
        cuts.append(begin)
        end = begin - 1
    chosen = firsts[[0, *reversed(cuts)]]
    pairs = [(int(first), int(widths[first])) for first in chosen]
    return tuple(p for i, p in enumerate(pairs) if i == 0 or p[1] < pairs[i - 1][1])


def _blocks(bounds: tuple[tuple[int, int], ...], graphs: int) -> list[AttentionBlock]:
    ends = [first for first, _ in bounds[1:]] + [graphs]
    return [
        AttentionBlock(first, end - first, w) for (first, w), end in zip(bounds, ends, strict=True)
    ]
