"""The batches of one epoch, by strategy: exact, streamed, or by an offline packing.

Each strategy takes an order of graphs and returns the graphs batch by batch with the bucket of each
batch, as arrays. The order, ranks, resuming and graphs that fit no bucket are handled by
:mod:`staticgraph.epochs.batcher`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from staticgraph.errors import GraphTooLarge
from staticgraph.packing.choose_packing import pack_histogram
from staticgraph.packing.draw_graphs import draw_packs, types_of
from staticgraph.packing.exact import exact_bounds, repair
from staticgraph.packing.packing_result import Packing
from staticgraph.packing.placement import (
    group_by_pack,
    homes,
    limits_array,
    place_batches,
    size_limits,
)
from staticgraph.packing.random import stream_of
from staticgraph.packing.stream import stream_kernel
from staticgraph.plans.packings import histogram_at, kept_packing
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many

# Batches of this many graphs are re-balanced among themselves: for 100 million graphs in one piece,
# another copy of the sizes, as floats, would take 1.6 GB.
STRETCH = 1 << 22


class EpochBatches(NamedTuple):
    """The batches of an epoch.

    Attributes:
        order: ``[n]`` positions in the store, batch by batch.
        bounds: ``[K + 1]`` where each batch begins and ends in ``order``.
        buckets: ``[K]`` the bucket of each batch.
        overflowed: batches that exceeded the main bucket as they were drawn.
        rebalanced: of those, how many were made to fit by swapping graphs.
        spilled: how many went to another bucket than the main one because it was too small.
        split: how many were split because no bucket held them.
    """

    order: IntArray
    bounds: IntArray
    buckets: IntArray
    overflowed: int = 0
    rebalanced: int = 0
    spilled: int = 0
    split: int = 0


def exact_epoch(
    order: IntArray,
    sizes: IntArray,
    limits: IntArray,
    main: int,
    batch_size: int,
    key: np.uint64 | None,
    windows: IntArray | None = None,
) -> EpochBatches:
    """Makes batches of ``batch_size`` graphs; an overflow is re-balanced, else spilled or split.

    Args:
        order: ``[n]`` positions in ``sizes``; changed in place where batches are re-balanced.
        sizes: ``[., C]`` nodes, edges and the further components.
        limits: ``[buckets, 2 + C]`` from :func:`~staticgraph.packing.placement.limits_array`.
        main: the bucket to balance for.
        batch_size: graphs in each batch except the last.
        key: of the swaps; None keeps the order, so that an overflow is not re-balanced.
        windows: ``[W + 1]`` bounds in ``order`` of the parts that are re-balanced separately. A
            batch across such a bound belongs to the window in which it begins. Only a window that
            does not fit its batches is re-balanced together with the next ones.
    """
    bounds = exact_bounds(len(order), batch_size)
    if key is None:
        buckets = place_batches(sizes, order, bounds, limits)
        overflowed = left = int(((buckets < 0) | (buckets > main)).sum())
    else:
        batches = len(bounds) - 1
        stretches = max(1, batches // max(1, STRETCH // batch_size))
        edges = batches * np.arange(stretches + 1) // stretches
        starts = edges if windows is None else np.unique(np.searchsorted(bounds, windows))
        join = len(starts) > len(edges)
        overflowed, left = _repaired(order, sizes, bounds, limits[main], key, starts, join)
        if left and join:  # windows of large graphs at the end give some to others
            left = _repaired(order, sizes, bounds, limits[main], key, edges)[1]
        buckets = place_batches(sizes, order, bounds, limits)
    spilled, split = int((buckets > main).sum()), int((buckets < 0).sum())
    if split:
        bounds, buckets = _halved(order, sizes, limits, bounds, buckets)
    return EpochBatches(
        order, bounds, buckets, overflowed, max(0, overflowed - left), spilled, split
    )


def drawn_epoch(
    order: IntArray, bounds: IntArray, sizes: IntArray, limits: IntArray
) -> EpochBatches:
    """Takes batches as somebody drew them, each in the smallest bucket that holds it.

    Args:
        order, bounds: as of :class:`EpochBatches`.
        sizes, limits: as for :func:`exact_epoch`.

    Raises:
        GraphTooLarge: a batch fits no bucket.
    """
    buckets = place_batches(sizes, order, bounds, limits)
    missed = np.flatnonzero(buckets < 0)
    if len(missed):
        ids = order[bounds[missed[0]] : bounds[missed[0] + 1]]
        totals = sizes[ids].sum(axis=0, dtype=np.int64)
        raise GraphTooLarge(
            f"batch {missed[0]} of the batch sampler, {how_many(len(ids), 'graph')} of "
            f"{how_many(totals[0], 'node')} and {how_many(totals[1], 'edge')} together, fits no "
            "bucket: make the plan with sg.plan_stream(store, batch_size=...), or give the graphs "
            "as sampler=, which are then balanced"
        )
    return EpochBatches(order, bounds, buckets)


def _repaired(
    order: IntArray,
    sizes: IntArray,
    bounds: IntArray,
    limit: IntArray,
    key: np.uint64,
    edges: IntArray,
    join: bool = False,
) -> tuple[int, int]:
    """Re-balances the stretches of batches between these ``edges`` separately; returns how many
    batches exceeded the limit before, and after. With ``join``, a stretch whose graphs are too
    large for its batches in total is joined to the next one, or left as it is if joining does not
    help within :data:`STRETCH`, since a failed attempt takes five times as long as a success."""
    overflowed, left = 0, 0
    allowed = np.array(size_limits(limit))
    begin, excess, waiting = int(edges[0]), np.zeros(len(allowed)), 0
    for number, (first, last) in enumerate(pairwise(edges.tolist())):
        if join:
            cuts = bounds[first : last + 1]
            here = sizes[order[cuts[0] : cuts[-1]]]
            loads = np.add.reduceat(here, cuts[:-1] - cuts[0], axis=0, dtype=np.int64)
            excess += loads.sum(axis=0) - (last - first) * allowed
            waiting += int((loads > allowed).any(axis=1).sum())
            if (excess > 0).any():
                if last < edges[-1] and cuts[-1] - bounds[begin] < STRETCH:
                    continue
                overflowed, left = overflowed + waiting, left + waiting
                begin, excess, waiting = last, np.zeros(len(allowed)), 0
                continue
        cuts = bounds[begin : last + 1]
        stream = key if not number else stream_of(int(key), number)
        over, _, still = repair(
            order[cuts[0] : cuts[-1]], sizes, cuts - cuts[0], size_limits(limit), stream
        )
        overflowed, left = overflowed + over, left + still
        begin, excess, waiting = last, np.zeros(len(allowed)), 0
    return overflowed, left


def _halved(
    order: IntArray, sizes: IntArray, limits: IntArray, bounds: IntArray, buckets: IntArray
) -> tuple[IntArray, IntArray]:
    """Bounds and buckets after repeatedly halving every batch that fits no bucket."""
    while (buckets < 0).any():
        lost = np.flatnonzero(buckets < 0)
        middles = (bounds[lost] + bounds[lost + 1] + 1) // 2
        bounds = np.insert(bounds, lost + 1, middles)
        buckets = place_batches(sizes, order, bounds, limits)
    return bounds, buckets


def streamed_epoch(
    order: IntArray, sizes: IntArray, capacities: Sequence[Capacity], window: int
) -> EpochBatches:
    """Packs as many graphs as fit, with one stream per bucket over the graphs whose home it is.
    With a window of 1, one per run of them: batches keep the order."""
    parts = []
    at_home = homes(sizes[order], capacities)
    if window == 1 and len(order):
        largest = homes(sizes[order].max(axis=0, keepdims=True), capacities)
        at_home = np.where(largest < 0, at_home, largest)
        streams = np.split(np.arange(len(order)), np.flatnonzero(np.diff(at_home)) + 1)
    else:
        streams = [np.flatnonzero(at_home == home) for home in range(len(capacities))]
    for positions in streams:
        if not len(positions):
            continue
        home = int(at_home[positions[0]])
        arrivals, capacity = order[positions], capacities[home]
        packs, _ = stream_kernel(
            sizes,
            arrivals,
            np.array(capacity.size_limits, dtype=np.int64),
            capacity.graph_limit,
            min(window, len(arrivals)),
        )
        grouped, bounds = group_by_pack(packs, int(packs.max()) + 1)
        parts.append((home, arrivals[grouped], bounds, positions[grouped[bounds[:-1]]]))
    return _joined(parts, sizes, capacities)


class OfflineParts(NamedTuple):
    """The data of one bucket that an offline packing needs: its home graphs and their packing."""

    home: int
    members: IntArray
    types: IntArray
    packing: Packing


def pack_offline(
    indices: IntArray,
    sizes: IntArray,
    capacities: Sequence[Capacity],
    packings: Sequence[Packing] = (),
) -> list[OfflineParts]:
    """Packs the sizes of all graphs once, or takes the plan's packing of exactly these graphs.

    The sizes that share a pack stay the same in every epoch (paper, section 2.6).
    """
    parts = []
    at_home = homes(sizes[indices], capacities)
    for home, capacity in enumerate(capacities):
        members = indices[at_home == home]
        if len(members):
            histogram = histogram_at(sizes[members])
            packing = kept_packing(packings, histogram, capacity) or pack_histogram(
                histogram, capacity.size_limits, max_graphs=capacity.graph_limit
            )
            parts.append(OfflineParts(home, members, types_of(packing, sizes[members]), packing))
    return parts


def offline_epoch(
    parts: Sequence[OfflineParts],
    sizes: IntArray,
    capacities: Sequence[Capacity],
    seed: int,
    epoch: int,
) -> EpochBatches:
    """Assigns the graphs of each size at random to the packing's places for that size."""
    drawn = []
    for part in parts:
        order, bounds = draw_packs(part.packing, part.types, seed=seed, epoch=epoch)
        # Packs are in a random order already; those of several buckets are interleaved evenly.
        when = np.linspace(0.0, 1.0, len(bounds) - 1, endpoint=False)
        drawn.append((part.home, part.members[order], bounds, when))
    return _joined(drawn, sizes, capacities)


def _joined(
    parts: Sequence[tuple[int, IntArray, IntArray, np.ndarray]],
    sizes: IntArray,
    capacities: Sequence[Capacity],
) -> EpochBatches:
    """Merges the batches of several buckets in the order of ``when``, each in the smallest bucket.

    Args:
        parts: for each bucket its number, the graphs batch by batch, the bounds of the batches and
            one number per batch to sort by.
        sizes: ``[., C]`` nodes, edges and the further components.
        capacities: the buckets.
    """
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return EpochBatches(nothing, np.zeros(1, dtype=np.int64), nothing)
    limits = limits_array(capacities)
    buckets, starts, stops = [], [], []
    begin = 0
    for home, members, bounds, _ in parts:
        allowed = limits.copy()
        allowed[
            limits[:, 3] > limits[home, 3]
        ] = -1  # no batch goes to a bucket for larger graphs than its own
        buckets.append(place_batches(sizes, members, bounds, allowed))
        starts.append(begin + bounds[:-1])
        stops.append(begin + bounds[1:])
        begin += len(members)
    when = np.argsort(np.concatenate([part[3] for part in parts]), kind="stable")
    start, stop = np.concatenate(starts)[when], np.concatenate(stops)[when]
    everything = np.concatenate([part[1] for part in parts])
    lengths = stop - start
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    moved = np.repeat(start - bounds[:-1], lengths) + np.arange(bounds[-1])
    return EpochBatches(everything[moved], bounds, np.concatenate(buckets)[when])
