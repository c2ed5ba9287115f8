"""The patterns that are worth most at given prices: a knapsack of two limits, solved exactly.

A *pattern* is the contents of one pack. Given a price for each size, column generation needs
patterns worth more than a pack. The idea: dynamic programming over the grid of both limits gives
the worth of any room; from it follows, for every size, the best pattern that contains it, so one
solution gives as many patterns as there are sizes.

The grid has the two scarcest components, divided by their common factors (edges come in pairs).
Where it is too large, sizes and limits are rounded down to a coarser one; a worth found there is
still no less than the true one, but a pattern may exceed a limit. Code that packs with patterns
must therefore use :func:`trimmed`, which also respects the further components and the limit on
graphs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop
from staticgraph.packing.packing_result import volumes
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray

Prices = NDArray[np.float64]

# The most cells of a knapsack's grid: it has 222 by 251 for ogbg-molhiv.
MAX_CELLS = 160_000
# The margin by which a pattern must be worth more than a pack.
GAIN = 1e-9


class Grid(NamedTuple):
    """The sizes on the grid of a knapsack.

    Attributes:
        sizes: ``[K, 2]`` int64, the two scarcest components.
        room: ``[2]`` int64, their limits.
        keep: ``[K]`` int64, rows of the histogram; sizes that are 0 on the grid are left out, since
            they fit anywhere.
        coarse: whether anything was rounded.
    """

    sizes: IntArray
    room: IntArray
    keep: IntArray
    coarse: bool


class Patterns(NamedTuple):
    """Concatenated patterns: ``[P + 1]`` starts into ``rows`` and ``copies`` ``[S]``."""

    starts: IntArray
    rows: IntArray
    copies: IntArray


def grid_of(histogram: SizeHistogram, limits: IntArray) -> Grid:
    """The sizes and ``[C]`` limits on a grid of at most :data:`MAX_CELLS` cells, approximately."""
    scarce = np.argsort(-volumes(histogram, limits), kind="stable")[:2]
    sizes, room = histogram.sizes[:, scarce], limits[scarce]
    if sizes.shape[1] == 1:
        sizes = np.column_stack([sizes, np.zeros(len(sizes), dtype=np.int64)])
        room = np.append(room, 0)
    common = np.maximum(1, np.gcd.reduce(sizes, axis=0))
    sizes, room = sizes // common, room // common
    coarse = False
    while int(room[0] + 1) * int(room[1] + 1) > MAX_CELLS:
        wide = int(np.argmax(room))
        cells = MAX_CELLS // int(room[1 - wide] + 1)
        step = max(2, -(-int(room[wide] + 1) // max(400, cells)))
        sizes[:, wide] //= step
        room[wide] //= step
        coarse = True
    keep = np.flatnonzero(sizes.any(axis=1))
    return Grid(np.ascontiguousarray(sizes[keep]), room, keep, coarse)


def worth_of_rooms(grid: Grid, prices: Prices) -> Prices:
    """``[room0 + 1, room1 + 1]`` the most that any number of sizes within each room is worth."""
    return _knapsack(grid.sizes, prices, grid.room)


def best_patterns(
    grid: Grid, prices: Prices, worth: Prices, counts: IntArray, most: int
) -> Patterns:
    """Patterns worth more than a pack: the best pattern that contains each size.

    Args:
        grid: of the sizes.
        prices: ``[K]``.
        worth: the result of :func:`worth_of_rooms` at these prices.
        counts: ``[K]`` the number of graphs of each size; among sizes of equal worth, one that is
            not used up is taken.
        most: the maximum number of patterns; those worth most are kept.
    """
    fits = (grid.sizes <= grid.room).all(axis=1) & (prices > 0)
    rows = np.flatnonzero(fits)
    rest = grid.room - grid.sizes[rows]
    values = prices[rows] + worth[rest[:, 0], rest[:, 1]]
    by_value = np.argsort(-values, kind="stable")
    begins = rows[by_value][values[by_value] > 1.0 + GAIN][:most]
    return Patterns(*_trace(grid.sizes, prices, worth, grid.room, begins, counts))


def trimmed(patterns: Patterns, sizes: IntArray, limits: IntArray, prices: Prices) -> Patterns:
    """Removes the cheapest graphs from patterns that exceed a limit, until they fit.

    Args:
        patterns: of rows of ``sizes``.
        sizes: ``[K, C]`` int64, with a column of ones where graphs are limited.
        limits: ``[C]`` int64.
        prices: ``[K]``.
    """
    return Patterns(*_trim(*patterns, sizes, limits, prices))


@loop
def _knapsack(sizes: IntArray, prices: Prices, room: IntArray) -> Prices:
    """See :func:`worth_of_rooms`."""
    worth = np.zeros((room[0] + 1, room[1] + 1))
    for t in range(len(sizes)):
        price = prices[t]
        if price <= 0:
            continue
        a, b = sizes[t]
        if b > room[1]:
            continue
        if a == 0:  # within a row, where a cell depends on another one of the row
            for i in range(room[0] + 1):
                for j in range(b, room[1] + 1):
                    worth[i, j] = max(worth[i, j], worth[i, j - b] + price)
            continue
        for i in range(a, room[0] + 1):
            before = worth[i - a, : room[1] + 1 - b]
            here = worth[i, b:]
            for j in range(len(here)):
                value = before[j] + price
                here[j] = value if value > here[j] else here[j]
    return worth


@loop
def _trace(
    sizes: IntArray,
    prices: Prices,
    worth: Prices,
    room: IntArray,
    begins: IntArray,
    counts: IntArray,
) -> tuple[IntArray, IntArray, IntArray]:
    """The best pattern that contains each of ``begins``.

    The search for the next size continues cyclically from the current one, so that patterns differ
    where many sizes are worth the same.
    """
    starts = [0]
    rows = [0 for _ in range(0)]
    copies = [0 for _ in range(0)]
    used = np.zeros(len(sizes), np.int64)
    for begin in begins:
        used[begin] = 1
        i, j = room[0] - sizes[begin, 0], room[1] - sizes[begin, 1]
        current = begin
        while worth[i, j] > 1e-12:
            chosen = -1
            for k in range(len(sizes)):
                t = current + k
                if t >= len(sizes):
                    t -= len(sizes)
                a, b = sizes[t]
                if (
                    prices[t] > 0
                    and a <= i
                    and b <= j
                    and worth[i - a, j - b] + prices[t] >= worth[i, j] - 1e-12
                ):
                    if chosen < 0:
                        chosen = t
                    if used[t] < counts[t]:
                        chosen = t
                        break
            if chosen < 0:
                break
            current = chosen
            used[chosen] += 1
            i -= sizes[chosen, 0]
            j -= sizes[chosen, 1]
        for t in range(len(sizes)):
            if used[t] > 0:
                rows.append(t)
                copies.append(used[t])
                used[t] = 0
        starts.append(len(rows))
    return np.array(starts), np.array(rows), np.array(copies)


@loop
def _trim(
    starts: IntArray,
    rows: IntArray,
    copies: IntArray,
    sizes: IntArray,
    limits: IntArray,
    prices: Prices,
) -> tuple[IntArray, IntArray, IntArray]:
    """See :func:`trimmed`."""
    new_starts = [0]
    new_rows = [0 for _ in range(0)]
    new_copies = [0 for _ in range(0)]
    copies = copies.copy()
    for p in range(len(starts) - 1):
        while True:
            over = False
            for c in range(len(limits)):
                load = 0
                for k in range(starts[p], starts[p + 1]):
                    load += copies[k] * sizes[rows[k], c]
                over = over or load > limits[c]
            if not over:
                break
            cheapest = -1
            for k in range(starts[p], starts[p + 1]):
                if copies[k] > 0 and (cheapest < 0 or prices[rows[k]] < prices[rows[cheapest]]):
                    cheapest = k
            copies[cheapest] -= 1
        for k in range(starts[p], starts[p + 1]):
            if copies[k] > 0:
                new_rows.append(rows[k])
                new_copies.append(copies[k])
        new_starts.append(len(new_rows))
    return np.array(new_starts), np.array(new_rows), np.array(new_copies)
