"""Exact batches that break their bucket's promise, repaired by exchanging graphs.

The problem: a batch with one large graph too many (:mod:`staticgraph.plans.order_statistics`) needs
a wider bucket, which is one more compile and recording for a batch or two per epoch; usually it is
the last batch of an epoch, into which swaps had moved large graphs since it had room. The idea:
exchange the excess graph for a smaller one of a batch that can take it. The invariant: every batch
keeps its number of graphs and its limits, and no promise that held is broken. Batches that cannot
be repaired this way are left for the caller to place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray

# The most exchanges for one batch; each repairs one order statistic that is too large.
MOST = 64


def exchange_graphs(
    batches: list[tuple[int, IntArray]], sizes: IntArray, capacities: Sequence[Capacity]
) -> int:
    """Exchanges graphs between batches of the same bucket, replacing entries of the list in place.

    Args:
        batches: for each batch, its bucket and the positions of its graphs, ``[g]`` int64.
        sizes: ``[n, C]`` int64.
        capacities: of the buckets.

    Returns:
        The number of batches that broke their promise and now keep it.
    """
    repaired = 0
    for number, (bucket, ids) in enumerate(batches):
        capacity = capacities[bucket]
        if capacity.order_statistics_hold(sizes[ids, 0]):
            continue
        for _ in range(MOST):
            if not _exchange(batches, number, sizes, capacity):
                break
            if capacity.order_statistics_hold(sizes[batches[number][1], 0]):
                repaired += 1
                break
    return repaired


def _exchange(
    batches: list[tuple[int, IntArray]], number: int, sizes: IntArray, capacity: Capacity
) -> bool:
    """Exchanges one graph, at the first position where the batch breaks its promise."""
    bucket, ids = batches[number]
    falling = np.argsort(-sizes[ids, 0], kind="stable")
    k, width = next(
        (k, width)
        for k, width in capacity.order_statistics
        if k < len(ids) and sizes[ids[falling[k]], 0] > width
    )
    place = int(falling[k])
    limits = np.array(capacity.size_limits, dtype=np.int64)
    room = limits - sizes[ids].sum(axis=0)
    for step in range(1, len(batches)):
        other = (number + step) % len(batches)
        theirs = batches[other][1]
        if batches[other][0] != bucket or not capacity.order_statistics_hold(sizes[theirs, 0]):
            continue
        more = sizes[theirs] - sizes[ids[place]]  # what the batch gains and the other loses
        fits = (more <= room).all(axis=1) & (sizes[theirs, 0] <= width)
        fits &= (sizes[theirs].sum(axis=0) - more <= limits).all(axis=1)
        for taken in np.flatnonzero(fits)[np.argsort(-more[fits, 0], kind="stable")][:4].tolist():
            changed = theirs.copy()
            changed[taken] = ids[place]
            if capacity.order_statistics_hold(sizes[changed, 0]):
                mine = ids.copy()
                mine[place] = theirs[taken]
                batches[number], batches[other] = (bucket, mine), (bucket, changed)
                return True
    return False
