"""Packing a histogram pack by pack: the largest graph first, the last few places by search.

The problem: best-fit places one size after the other and never considers a pack as a whole; the
space left at the end of each pack, one or two nodes of 222, is lost. The idea: fill one pack at a
time. The largest remaining size opens it, the largest that still fits follows, and when only a few
more graphs would fit, every combination of up to three sizes is considered (within a bound on the
tries) and the one that leaves least is taken. A finished pack is repeated for as many graphs as
there are, so the number of patterns is about the number of sizes and not of graphs.

Where the number of graphs per pack is limited, largest first uses up the large graphs, and the last
packs run out of places for graphs half empty (407,976 trees like ogbg-code2's, 256 per pack: 20%
more packs than the bound). So there the largest graph is followed by the largest of those that are
no larger than the remaining room per place: nodes and places run out together (0.1% over the
bound).

"Least" is measured in the component that matters: each component is weighted by how many packs it
would need by itself, raised to a power, so that on ogbg-molhiv (where nodes decide) an unused edge
costs little. Several settings are run and the best result kept; the loop ends when the volume bound
is reached.

On ogbg-molhiv this reaches the linear-programming bound, and on ogbg-molpcba the volume bound: both
are proven optimal (``docs/packing.md``). Related: the minimum bin slack heuristic (Gupta and Ho
1999, "A new heuristic algorithm for the one-dimensional bin-packing problem") for one component.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.jit import loop, part
from staticgraph.packing.coarse import coarsened
from staticgraph.packing.packing_result import (
    Packing,
    checked_limits,
    volume_bound,
    volumes,
    with_graphs,
)
from staticgraph.packing.swap import fewer_by_swaps
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray


class Effort(NamedTuple):
    """One setting of the filler.

    Attributes:
        early: the search begins when at most this many graphs fit by largest-first.
        tries: sizes considered for the first place.
        second_tries: sizes considered for the second of three places.
    """

    early: int
    tries: int
    second_tries: int


# Measured on the histograms in tests/data/histograms: the first setting
# reaches the bound on ogbg-molhiv, the second on ogbg-molpcba; the third gains 1 to 3 packs where
# few graphs have the same size and swaps do not help.
QUICK = (Effort(2, 16, 16),)
THOROUGH = (*QUICK, Effort(3, 16, 16), Effort(1, 512, 1))
# The power in the weights of the components.
SHARPNESS = 4.0
# The settings differ in the last places of a pack, which hardly matter above this many graphs.
MANY_GRAPHS = 30
GONE = np.iinfo(np.int64).max
# Where graphs are limited, this many places of a pack are left to the search.
PLACES = 3


def fill_histogram(
    histogram: SizeHistogram,
    limits: ArrayLike,
    *,
    max_graphs: int | None = None,
    efforts: tuple[Effort, ...] = THOROUGH,
) -> Packing:
    """Packs all graphs of a histogram, pack by pack.

    With very many distinct sizes, those that are nearly equal are packed as if they were the
    largest of them (:mod:`staticgraph.packing.coarse`); ``method`` says what that costs.

    Args:
        histogram: the sizes.
        limits: ``[C]`` usable limits (a capacity has one node and one graph more).
        max_graphs: how many graphs a pack may hold; no limit where None.
        efforts: the settings to try; the best result is kept.

    Raises:
        GraphTooLarge: a single size exceeds a limit.
        ValueError: the numbers of limits and components differ, ``max_graphs`` is below 1, or
            ``efforts`` is empty.
    """
    bounds = checked_limits(histogram, limits, max_graphs)
    coarse = coarsened(histogram)
    least = volume_bound(coarse.histogram, bounds, max_graphs)
    best: Packing | None = None
    for effort in efforts:
        packing = _pack_once(coarse.histogram, bounds, max_graphs, effort)
        if best is None or packing.num_packs < best.num_packs:
            best = fewer_by_swaps(packing)
            if best.num_packs < packing.num_packs:
                break  # where swaps are better, other settings make no difference
        if best.num_packs <= least or histogram.num_graphs > MANY_GRAPHS * best.num_packs:
            break
    if best is None:
        raise ValueError("efforts is empty; give at least one setting")
    return coarse.expanded(best)


def _pack_once(
    histogram: SizeHistogram, limits: IntArray, max_graphs: int | None, effort: Effort
) -> Packing:
    """One run of the filler."""
    sizes, bounds = with_graphs(histogram, limits, max_graphs)
    weights = component_weights(histogram, limits, max_graphs, SHARPNESS)
    worth = (sizes / np.maximum(1, bounds)) @ weights
    return fill_by_worth(histogram, limits, max_graphs, worth, effort)


def fill_by_worth(
    histogram: SizeHistogram,
    limits: IntArray,
    max_graphs: int | None,
    worth: NDArray[np.float64],
    effort: Effort = QUICK[0],
) -> Packing:
    """One run of the filler that orders sizes by ``worth`` ``[T]``."""
    sizes, bounds = with_graphs(histogram, limits, max_graphs)
    order = np.lexsort((-sizes[:, 0], -worth))
    starts, types, copies, counts = _fill(
        np.ascontiguousarray(sizes[order]),
        histogram.counts[order],
        worth[order],
        bounds,
        *effort,
        max_graphs is not None,
    )
    return Packing(
        histogram, limits, max_graphs, starts, order[types], copies, counts, method="fill"
    )


def component_weights(
    histogram: SizeHistogram, limits: IntArray, max_graphs: int | None, sharpness: float
) -> NDArray[np.float64]:
    """``[C]`` (``[C + 1]`` with a limit on graphs) the cost of unused room in each component."""
    needed = volumes(histogram, limits, max_graphs)
    return (needed / max(needed.max(initial=0.0), 1e-12)) ** sharpness


@loop
def _fill(
    sizes: IntArray,
    counts: IntArray,
    worth: NDArray[np.float64],
    limits: IntArray,
    early: int,
    tries: int,
    second_tries: int,
    limited: bool,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Patterns ``(starts, types, copies, counts)`` over ``sizes`` sorted by descending ``worth``;
    where graphs are ``limited`` they are the last component."""
    counts = counts.copy()
    # The sizes, or GONE where no graphs are left.
    open_sizes = sizes.copy()
    for t in range(len(counts)):
        if counts[t] == 0:
            open_sizes[t] = GONE
    used = np.zeros(len(sizes), np.int64)
    chosen = np.zeros(4, np.int64)
    starts = [0]
    types = [0 for _ in range(0)]
    copies = [0 for _ in range(0)]
    repeats = [0 for _ in range(0)]
    room, average = limits.copy(), limits.copy()
    top = 0
    while top < len(sizes):
        if counts[top] == 0:
            top += 1
            continue
        for c in range(len(limits)):
            room[c] = limits[c]
        _place(open_sizes, sizes, counts, used, room, types, top, 1)
        while limited and room[-1] > PLACES:
            for c in range(len(room)):
                average[c] = room[c] // room[-1]
            t = first(open_sizes, average, 0)
            if t < 0:  # there is room for fewer graphs than are allowed
                break
            _place(open_sizes, sizes, counts, used, room, types, t, 1)
        while True:
            number = _next(
                open_sizes,
                sizes,
                counts,
                worth,
                used,
                room,
                chosen,
                early,
                tries,
                second_tries,
            )
            if number == 0:
                break
            if number < 0:  # many graphs of one size, far from the end of the pack
                _place(open_sizes, sizes, counts, used, room, types, chosen[0], -number)
            for q in range(number):
                _place(open_sizes, sizes, counts, used, room, types, chosen[q], 1)
        times = counts[top]
        for q in range(starts[-1], len(types)):
            times = min(times, counts[types[q]] // used[types[q]])
        for q in range(starts[-1], len(types)):
            t = types[q]
            copies.append(used[t])
            gone = counts[t] == used[t]
            counts[t] -= times * used[t]
            used[t] = 0
            if counts[t] == 0 and not gone:
                open_sizes[t] = GONE
            elif counts[t] > 0 and gone:
                open_sizes[t] = sizes[t]
        repeats.append(times)
        starts.append(len(types))
    return np.array(starts), np.array(types), np.array(copies), np.array(repeats)


@part
def _place(
    open_sizes: IntArray,
    sizes: IntArray,
    counts: IntArray,
    used: IntArray,
    room: IntArray,
    types: list[int],
    t: int,
    times: int,
) -> None:
    """Adds ``times`` graphs of type ``t`` to the pack that is being filled."""
    if used[t] == 0:
        types.append(t)
    used[t] += times
    for c in range(len(room)):
        room[c] -= times * sizes[t, c]
    if used[t] == counts[t]:
        open_sizes[t] = GONE


@part
def _next(
    open_sizes: IntArray,
    sizes: IntArray,
    counts: IntArray,
    worth: NDArray[np.float64],
    used: IntArray,
    room: IntArray,
    chosen: IntArray,
    early: int,
    tries: int,
    second_tries: int,
) -> int:
    """Chooses the graphs that go into the pack next.

    Returns:
        How many types ``chosen`` holds; 0 where nothing fits; minus the number of copies where
        only ``chosen[0]`` is added, that many times.
    """
    rest = room.copy()
    t = first(open_sizes, rest, 0)
    if t < 0:
        return 0
    largest = t
    greedy = 0
    value = 0.0
    last, in_a_row = -1, 0
    while t >= 0 and greedy <= early:
        in_a_row = in_a_row + 1 if t == last else 1
        last = t
        chosen[greedy] = t
        value += worth[t]
        greedy += 1
        for c in range(len(rest)):
            rest[c] -= sizes[t, c]
        t = first(open_sizes, rest, t if used[t] + in_a_row < counts[t] else t + 1)
    if greedy > early:
        chosen[0] = largest
        return -_copies_at_once(sizes, counts, used, room, largest, early)
    return _search(
        open_sizes,
        sizes,
        counts,
        worth,
        used,
        room,
        chosen,
        largest,
        greedy,
        value,
        tries,
        second_tries,
    )


@part
def _copies_at_once(
    sizes: IntArray, counts: IntArray, used: IntArray, room: IntArray, t: int, early: int
) -> int:
    """How many graphs of type ``t`` fit before the end of the pack is near; at least 1."""
    most = counts[t] - used[t]
    for c in range(len(room)):
        if sizes[t, c] > 0:
            most = min(most, room[c] // sizes[t, c])
    return max(1, most - early)


@part
def _search(
    open_sizes: IntArray,
    sizes: IntArray,
    counts: IntArray,
    worth: NDArray[np.float64],
    used: IntArray,
    room: IntArray,
    chosen: IntArray,
    largest: int,
    number: int,
    best: float,
    tries: int,
    second_tries: int,
) -> int:
    """Finds the two or three types with the most combined worth; on entry ``chosen`` holds
    ``number`` types of total worth ``best``.

    The types are sorted by worth, so a first type can only win while three times its worth exceeds
    the best so far.
    """
    gain = 1e-12
    room_a, room_b = np.empty_like(room), np.empty_like(room)
    a = largest
    for _ in range(tries):
        if a < 0 or 3 * worth[a] <= best + gain:
            break
        for c in range(len(room)):
            room_a[c] = room[c] - sizes[a, c]
        b = first(open_sizes, room_a, a if used[a] + 1 < counts[a] else a + 1)
        for _ in range(second_tries):
            if b < 0 or worth[a] + 2 * worth[b] <= best + gain:
                break
            for c in range(len(room)):
                room_b[c] = room_a[c] - sizes[b, c]
            taken = used[b] + (2 if a == b else 1)
            third = first(open_sizes, room_b, b if taken < counts[b] else b + 1)
            value = worth[a] + worth[b] + (worth[third] if third >= 0 else 0.0)
            if value > best + gain:
                best, number = value, 3 if third >= 0 else 2
                chosen[0], chosen[1], chosen[2] = a, b, third
            b = first(open_sizes, room_a, b + 1)
        a = first(open_sizes, room, a + 1)
    return number


@part
def first(open_sizes: IntArray, room: IntArray, start: int) -> int:
    """The first type from ``start`` on that has graphs and fits ``room`` ``[C]``, or -1."""
    for t in range(start, len(open_sizes)):
        fits = True
        for c in range(open_sizes.shape[1]):
            if open_sizes[t, c] > room[c]:
                fits = False
                break
        if fits:
            return t
    return -1
