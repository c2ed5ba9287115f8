"""The published packing, compiled: every size goes to the open pack with the least room for it.

The problem: at two or three graphs per pack, filling pack by pack (:mod:`staticgraph.packing.fill`)
uses up the sizes that combine well with others, and plain best fit over all open packs is better.
The idea is that of tuple packing's *longest pack first* (Krell et al. 2022, arXiv 2209.06354):
sizes in descending order of a measure, each to the pack whose room has the least measure among
those that hold it. Which measure is best depends on the limits, so all of them are tried; together
they take a few milliseconds.

The invariant: for each measure the packs are those of the published listing, including its quirk
(once some graphs of a size have found a pack, the rest of that size look only at packs with more
room than they need). The tests compare them with the listing in plain Python.

Packs with equal contents form one *group*; the contents of a group are a chain of sizes back to the
empty pack, so groups that were split share their common prefix.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from staticgraph.jit import loop, part
from staticgraph.packing.pack import Packing
from staticgraph.packing.stream import NO_LIMIT
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray

# Measures of a size or a room: product, sum, most, least; then each component by itself.
PRODUCT, SUM, MOST, LEAST, FIRST_COMPONENT = range(5)


def listings(
    histogram: SizeHistogram, limits: IntArray, max_graphs: int | None
) -> Iterator[Packing]:
    """Yields the packing of the published listing for each measure in turn.

    Args:
        histogram: the sizes, none above a limit.
        limits: ``[C]`` usable limits.
        max_graphs: how many graphs a pack may hold; no limit where None.
    """
    width = len(limits)
    within = np.prod(limits.astype(np.float64)) < 2.0**62
    for measure in range(FIRST_COMPONENT + width):
        if measure == PRODUCT and not within:
            continue
        if width == 1 and measure > PRODUCT:
            return
        order = _falling(histogram.sizes, measure)
        starts, types, copies, counts = _place_all(
            histogram.sizes,
            histogram.counts,
            order,
            limits,
            NO_LIMIT if max_graphs is None else max_graphs,
            measure,
        )
        yield Packing(histogram, limits, max_graphs, starts, types, copies, counts, "best fit")


def _falling(sizes: IntArray, measure: int) -> IntArray:
    """``[T]`` rows by descending measure, then by descending components."""
    if measure == PRODUCT:
        value = np.prod(sizes, axis=1)
    elif measure == SUM:
        value = sizes.sum(axis=1)
    elif measure == MOST:
        value = sizes.max(axis=1)
    elif measure == LEAST:
        value = sizes.min(axis=1)
    else:
        value = sizes[:, measure - FIRST_COMPONENT]
    return np.lexsort((*sizes.T[::-1], value))[::-1].astype(np.int64)


@part
def _measured(row: IntArray, measure: int) -> int:
    """The measure of one size or room ``[C]``."""
    if measure >= 4:
        return row[measure - 4]
    value = row[0]
    for c in range(1, len(row)):
        if measure == 0:
            value *= row[c]
        elif measure == 1:
            value += row[c]
        elif measure == 2:
            value = max(value, row[c])
        else:
            value = min(value, row[c])
    return value


@part
def _first_at_least(keys: IntArray, groups: int, key: int) -> int:
    """The first position among the ``groups`` sorted keys whose key is at least ``key``."""
    low, high = 0, groups
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@loop
def _place_all(
    sizes: IntArray,
    counts: IntArray,
    order: IntArray,
    limits: IntArray,
    max_graphs: int,
    measure: int,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Patterns ``(starts, types, copies, counts)`` of the listing for one measure."""
    width = len(limits)
    # Per group in order of opening: its parent and added size, its graphs, room and multiplicity.
    parent = [-1 for _ in range(0)]
    added = [0 for _ in range(0)]
    held = [0 for _ in range(0)]
    times = [0 for _ in range(0)]
    room = np.empty((64, width), np.int64)
    # The open groups by the measure of their room, and equal measures in order of arrival.
    keys = np.empty(64, np.int64)
    group = np.empty(64, np.int64)
    opened = 0
    for t in order:
        left = int(counts[t])
        need = _measured(sizes[t], measure)
        least = need
        while left > 0:
            place = _first_at_least(keys, opened, least)
            while place < opened:
                fits = True
                for c in range(width):
                    if room[group[place], c] < sizes[t, c]:
                        fits = False
                        break
                if fits:
                    break
                place += 1
            g = int(group[place]) if place < opened else -1
            taken = left if g < 0 else min(left, times[g])
            left -= taken
            new = len(parent)
            if new == len(room):
                room = np.concatenate((room, np.empty_like(room)))
                keys = np.concatenate((keys, np.empty_like(keys)))
                group = np.concatenate((group, np.empty_like(group)))
            parent.append(g)
            added.append(t)
            held.append(1 if g < 0 else held[g] + 1)
            times.append(taken)
            for c in range(width):
                room[new, c] = (limits[c] if g < 0 else room[g, c]) - sizes[t, c]
            if g >= 0:
                times[g] -= taken
                # The remainder of a group moves to the end of those with its measure.
                end = _first_at_least(keys, opened, keys[place] + 1)
                for k in range(place, end - 1):
                    group[k] = group[k + 1]
                if times[g] > 0:
                    group[end - 1] = g
                else:
                    for k in range(end - 1, opened - 1):
                        keys[k], group[k] = keys[k + 1], group[k + 1]
                    opened -= 1
                least = need + 1
            key = _measured(room[new], measure)
            if key > 0 and held[new] < max_graphs:
                at = _first_at_least(keys, opened, key + 1)
                for k in range(opened, at, -1):
                    keys[k], group[k] = keys[k - 1], group[k - 1]
                keys[at], group[at] = key, new
                opened += 1
    return _as_patterns(parent, added, times, len(sizes))


@part
def _as_patterns(
    parent: list[int], added: list[int], times: list[int], num_types: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Every group that remains at the end, as the copies of each type that it holds."""
    starts = [0]
    types = [0 for _ in range(0)]
    copies = [0 for _ in range(0)]
    repeats = [0 for _ in range(0)]
    used = np.zeros(num_types, np.int64)
    for last in range(len(parent)):
        if times[last] == 0:
            continue
        g = last
        while g >= 0:
            if used[added[g]] == 0:
                types.append(added[g])
            used[added[g]] += 1
            g = parent[g]
        for k in range(starts[-1], len(types)):
            copies.append(used[types[k]])
            used[types[k]] = 0
        starts.append(len(types))
        repeats.append(times[last])
    return np.array(starts), np.array(types), np.array(copies), np.array(repeats)
