"""Packing into a given number of packs: dealt evenly at random, then repaired by swaps.

Filling pack by pack is best while a pack holds a few graphs. With 30 or more it uses up the large
graphs first, and the last packs run out of graph slots, or of one component long before the other
(on COLLAB dense graphs meet dense ones: 76%). The idea: fix the number of packs, deal the graphs
evenly, and swap until every pack fits (:mod:`staticgraph.packing.exact`); with many graphs per pack
there are so many possible swaps that this succeeds within a few tenths of a percent of the volume
bound, in both components at once, and all packs hold about the same number of graphs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from staticgraph.packing.exact import even_bounds, repair
from staticgraph.packing.packing_result import Packing, part_of, volume_bound
from staticgraph.packing.random import shuffle, stream_of
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray

# With fewer graphs per pack there are too few swaps, and filling pack by pack is better.
MIN_GRAPHS = 5
# With more graphs, this many are packed and the result repeated, and the rest is packed separately.
AT_ONCE = 10_000
# A graph with more than this share of a limit at first keeps the pack that was filled around it.
GIANT = 0.25
# The most swaps tried per pack, on average: a success takes fewer, a failure would take far more.
TRIES = 60
# The search for fewer packs ends within this share of the best.
RESOLUTION = 0.0005
# It tries this share of the way from the best to the bound: a failure takes longer than a success.
STRIDE = 0.25


def pack_by_swaps(
    histogram: SizeHistogram,
    limits: IntArray,
    packs: int,
    *,
    max_graphs: int | None = None,
) -> Packing | None:
    """A packing into at most ``packs`` packs, or None where the swaps did not succeed.

    Only for two components.
    """
    total = histogram.num_graphs
    if packs < 1 or packs > total or histogram.sizes.shape[1] != 2:
        return None
    if max_graphs is not None and -(-total // packs) > max_graphs:
        return None
    if (histogram.totals > packs * limits.astype(np.float64)).any():
        return None
    times = total // AT_ONCE
    if times > 1 and (histogram.counts >= times).any():
        return _repeated(histogram, limits, packs, times, max_graphs)
    order = np.repeat(np.arange(len(histogram.counts), dtype=np.int64), histogram.counts)
    key = stream_of(0, packs)
    shuffle(order, key)
    bounds = even_bounds(total, packs)
    left = repair(order, histogram.sizes, bounds, limits.tolist(), key, TRIES)[2]
    return None if left else as_packing(histogram, limits, max_graphs, order, bounds)


def _repeated(
    histogram: SizeHistogram,
    limits: IntArray,
    packs: int,
    times: int,
    max_graphs: int | None,
) -> Packing | None:
    """Packs one part of the graphs once, uses it ``times`` times, and packs the remainder."""
    counts = histogram.counts // times
    split, rows = part_of(histogram, counts)
    share = float((times * split.totals / np.maximum(1, histogram.totals)).max())
    part = max(int(packs * share) // times, volume_bound(split, limits, max_graphs))
    first = pack_by_swaps(split, limits, part, max_graphs=max_graphs)
    if first is None:
        return None
    repeated = replace(
        first, histogram=histogram, types=rows[first.types], counts=first.counts * times
    )
    remainder, rows = part_of(histogram, histogram.counts - times * counts)
    if not len(rows):
        return repeated if repeated.num_packs <= packs else None
    rest = pack_by_swaps(remainder, limits, packs - times * part, max_graphs=max_graphs)
    return None if rest is None else repeated.join(rest, rows)


def fewer_by_swaps(best: Packing) -> Packing:
    """A packing with fewer packs than ``best`` where swaps find one, else ``best``.

    At first, packs that are opened by a graph of more than :data:`GIANT` of a limit stay as they
    are: with few graphs per pack they cannot hold as many as the others, and an even deal would
    never fit them. With many it does, and better than they were filled, so then all are dealt.
    """
    histogram, limits = best.histogram, best.limits
    if histogram.num_graphs < MIN_GRAPHS * best.num_packs:
        return best
    opened_by = histogram.sizes[best.types[best.starts[:-1]]]
    giant = (opened_by > GIANT * limits).any(axis=1)
    giants, nothing = best.with_counts(best.counts * giant), best.with_counts(best.counts * 0)
    for kept in (giants, nothing) if giant.any() else (nothing,):
        rest, rows = part_of(histogram, histogram.counts - kept.placed)
        least = volume_bound(rest, limits, best.max_graphs)
        most = best.num_packs - kept.num_packs
        while most - least > RESOLUTION * most:
            middle = most - max(1, int(STRIDE * (most - least)))
            packing = pack_by_swaps(rest, limits, middle, max_graphs=best.max_graphs)
            if packing is None:
                break
            best, most = replace(kept.join(packing, rows), method="fill and swap"), middle
    return best


def as_packing(
    histogram: SizeHistogram,
    limits: IntArray,
    max_graphs: int | None,
    order: IntArray,
    bounds: IntArray,
    method: str = "swap",
) -> Packing:
    """A packing with each batch as a separate pattern, equal types merged.

    ``order`` ``[n]`` are rows of the histogram, ``bounds`` ``[packs + 1]`` where each batch begins.
    """
    packs = len(bounds) - 1
    pack_of = np.repeat(np.arange(packs), np.diff(bounds))
    keys = pack_of * len(histogram.counts) + order
    distinct, copies = np.unique(keys, return_counts=True)
    owner, types = np.divmod(distinct, len(histogram.counts))
    starts = np.searchsorted(owner, np.arange(packs + 1)).astype(np.int64)
    ones = np.ones(packs, dtype=np.int64)
    return Packing(
        histogram, limits, max_graphs, starts, types, copies.astype(np.int64), ones, method
    )
