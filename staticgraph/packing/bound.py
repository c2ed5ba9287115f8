"""How far from the best possible a packing is: a bound that is proven, not guessed.

The volume bound says that the packs must hold all nodes and all edges; for small packs the truth is
far above it, because sizes do not add up to the limit. The idea: the linear relaxation of the
cutting-stock problem, with one variable for each possible pattern, by column generation (Gilmore
and Gomory 1961, "A linear programming approach to the cutting-stock problem"). Its dual gives a
price to each size such that no pattern is worth more than one pack; the value of all graphs at
those prices is a number of packs below which nothing can go. The best pattern at given prices is a
knapsack of two components, solved exactly by dynamic programming over the grid of limits.

The invariant: the bound returned is valid whenever the loop stops (Farley 1990, "A note on bounding
a class of linear programming problems": the value divided by the worth of the best pattern). Where
the grid is too large, sizes and limits are rounded down to a coarser one, which keeps the bound
valid and makes it weaker. A limit on graphs is left out of the patterns and enters by volume alone.

It needs SciPy, an extra: ``pip install staticgraph[bound]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.packing.fill import fill_histogram
from staticgraph.packing.pack import Packing, checked_limits, volume_bound, volumes
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray

# Cells of the grid of a knapsack: 222 by 251 for ogbg-molhiv; one solution takes 30 ms there.
MAX_CELLS = 160_000
# Patterns added for each solution of the linear program, and solutions at most.
PATTERNS_A_ROUND = 120
ROUNDS = 150
# The prices tried are mixed with the best so far (Wentges 1997, "Weighted Dantzig-Wolfe
# decomposition"): 89 rounds instead of 122 on ogbg-molhiv, half the time.
TRUST = 0.8


@dataclass(frozen=True, slots=True)
class PackingBound:
    """A proven lower bound on the number of packs.

    Attributes:
        packs: no packing has fewer packs than this.
        linear: the value of the relaxation (its proven part), before rounding up.
        volume: the bound by volume alone.
        columns: patterns generated.
        rounds: linear programs solved.
        coarse: the grid was rounded, so the relaxation itself may be stronger.
    """

    packs: int
    linear: float
    volume: int
    columns: int
    rounds: int
    coarse: bool


def packing_bound(
    histogram: SizeHistogram,
    limits: ArrayLike,
    *,
    max_graphs: int | None = None,
    start: Packing | None = None,
    rounds: int = ROUNDS,
) -> PackingBound:
    """The linear-programming bound of the cutting-stock form.

    Args:
        histogram: the sizes.
        limits: ``[C]`` usable limits.
        max_graphs: how many graphs a pack may hold; enters by volume.
        start: a packing whose patterns to begin with; made where None. Generation stops as soon
            as its number of packs is proven best.
        rounds: how many linear programs to solve at most; the bound is valid wherever it stops.

    Raises:
        ImportError: SciPy is not installed; the message says how to get it.
        GraphTooLarge: a size exceeds a limit alone.
    """
    optimize = _scipy_optimize()
    bounds = checked_limits(histogram, limits, max_graphs)
    volume = volume_bound(histogram, bounds, max_graphs)
    packing = start or fill_histogram(histogram, bounds, max_graphs=max_graphs)
    sizes, room, keep, coarse = _grid(histogram, bounds)
    if packing.num_packs <= volume or not len(keep):
        return PackingBound(volume, float(volume), volume, 0, 0, coarse)
    demand = histogram.counts[keep].astype(np.float64)
    columns = _Columns(_starting_columns(packing, keep, len(histogram.counts)))
    trusted, proven = _volume_prices(sizes, room, demand)
    solved = 0
    while solved < rounds and not _proves(proven, packing.num_packs):
        solved += 1
        result = optimize.linprog(
            np.ones(columns.count),
            A_ub=-columns.matrix(len(keep)),
            b_ub=-demand,
            method="highs",
        )
        if result.status != 0 or _same_packs(proven, result.fun):
            break
        prices = np.maximum(0.0, -result.ineqlin.marginals)
        added = 0
        for tried in (TRUST * trusted + (1 - TRUST) * prices, prices):
            worth = _knapsack(sizes, tried, room)
            best = max(1.0, float(worth[tuple(room)]))
            if tried @ demand / best > proven:
                proven, trusted = float(tried @ demand / best), tried / best
            patterns = _patterns(sizes, tried, worth, room)
            added = columns.add([p for p in patterns if _value(p, prices) > 1.0 + 1e-9])
            if added:
                break
        if not added:
            break
    packs = max(volume, _whole(proven))
    return PackingBound(packs, proven, volume, columns.count, solved, coarse)


def _whole(packs: float) -> int:
    """Rounded up; a millionth covers the rounding of the solver."""
    return math.ceil(packs - 1e-6)


def _same_packs(proven: float, relaxed: float) -> bool:
    """Whether going on could still raise the bound by a whole pack."""
    return _whole(proven) >= _whole(relaxed)


def _value(pattern: dict[int, int], prices: NDArray[np.float64]) -> float:
    """What a pattern is worth."""
    return sum(copies * float(prices[row]) for row, copies in pattern.items())


def _volume_prices(
    sizes: IntArray, room: IntArray, demand: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Prices that prove the volume bound on this grid: a size's share of the scarcer limit."""
    needed = demand @ sizes / np.maximum(1, room)
    scarce = int(np.argmax(needed))
    return sizes[:, scarce] / max(1, int(room[scarce])), float(needed[scarce])


def _proves(proven: float, packs: int) -> bool:
    """Whether the bound reaches the packs found."""
    return _whole(proven) >= packs


def _scipy_optimize() -> ModuleType:
    try:
        from scipy import optimize
    except ImportError as error:
        raise ImportError(
            "the linear-programming bound needs SciPy: pip install 'staticgraph[bound]'. "
            "The volume bound needs nothing: packing.volume_bound"
        ) from error
    return optimize


def _grid(histogram: SizeHistogram, limits: IntArray) -> tuple[IntArray, IntArray, IntArray, bool]:
    """Sizes ``[K, 2]`` and limits ``[2]`` of the two scarcest components on a grid small enough.

    Also the rows of the histogram that have a size there (the others fit anywhere), and whether
    anything was rounded.
    """
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
    return np.ascontiguousarray(sizes[keep]), room, keep, coarse


def _starting_columns(packing: Packing, keep: IntArray, num_types: int) -> list[dict[int, int]]:
    """The patterns of a packing as ``{row among kept: copies}``."""
    place = np.full(num_types, -1, dtype=np.int64)
    place[keep] = np.arange(len(keep))
    patterns = []
    for p in range(len(packing.counts)):
        entry = slice(packing.starts[p], packing.starts[p + 1])
        rows, copies = place[packing.types[entry]].tolist(), packing.copies[entry].tolist()
        patterns.append({r: k for r, k in zip(rows, copies, strict=True) if r >= 0})
    return [pattern for pattern in patterns if pattern]


class _Columns:
    """Distinct patterns as a sparse matrix ``[types, columns]``."""

    def __init__(self, patterns: list[dict[int, int]]) -> None:
        self.seen: set[tuple[tuple[int, int], ...]] = set()
        self.patterns: list[dict[int, int]] = []
        self.add(patterns)

    @property
    def count(self) -> int:
        return len(self.patterns)

    def add(self, patterns: list[dict[int, int]]) -> int:
        """How many of these were new."""
        before = self.count
        for pattern in patterns:
            key = tuple(sorted(pattern.items()))
            if key not in self.seen:
                self.seen.add(key)
                self.patterns.append(pattern)
        return self.count - before

    def matrix(self, num_types: int):
        """SciPy's compressed columns."""
        from scipy import sparse

        rows = [row for pattern in self.patterns for row in pattern]
        values = [float(copies) for pattern in self.patterns for copies in pattern.values()]
        starts = np.cumsum([0, *(len(pattern) for pattern in self.patterns)])
        return sparse.csc_matrix((values, rows, starts), shape=(num_types, self.count))


@numba.njit(nogil=True, cache=True)
def _knapsack(sizes: IntArray, prices: NDArray[np.float64], room: IntArray) -> NDArray[np.float64]:
    """``[room0 + 1, room1 + 1]`` the most that any number of sizes within each room is worth."""
    worth = np.zeros((room[0] + 1, room[1] + 1))
    for t in range(len(sizes)):
        price = prices[t]
        if price <= 0:
            continue
        a, b = sizes[t]
        for i in range(a, room[0] + 1):
            for j in range(b, room[1] + 1):
                value = worth[i - a, j - b] + price
                if value > worth[i, j]:
                    worth[i, j] = value
    return worth


def _patterns(
    sizes: IntArray, prices: NDArray[np.float64], worth: NDArray[np.float64], room: IntArray
) -> list[dict[int, int]]:
    """Patterns worth more than a pack: for each size the best one that contains it."""
    fits = (sizes <= room).all(axis=1) & (prices > 0)
    rows = np.flatnonzero(fits)
    rest = room - sizes[rows]
    values = prices[rows] + worth[rest[:, 0], rest[:, 1]]
    chosen = rows[np.argsort(-values, kind="stable")]
    values = np.sort(values)[::-1]
    patterns = []
    for t, value in zip(chosen[:PATTERNS_A_ROUND].tolist(), values.tolist(), strict=False):
        if value <= 1.0 + 1e-9:
            break
        copies = _trace(sizes, prices, worth, room, t)
        used = np.flatnonzero(copies)
        patterns.append(dict(zip(used.tolist(), copies[used].tolist(), strict=True)))
    return patterns


@numba.njit(nogil=True, cache=True)
def _trace(
    sizes: IntArray,
    prices: NDArray[np.float64],
    worth: NDArray[np.float64],
    room: IntArray,
    begin: int,
) -> IntArray:
    """``[K]`` copies of each size in the best pattern that contains ``begin``."""
    copies = np.zeros(len(sizes), np.int64)
    copies[begin] = 1
    i, j = room[0] - sizes[begin, 0], room[1] - sizes[begin, 1]
    while worth[i, j] > 1e-12:
        found = False
        for t in range(len(sizes)):
            a, b = sizes[t]
            if (
                prices[t] > 0
                and a <= i
                and b <= j
                and worth[i - a, j - b] + prices[t] >= worth[i, j] - 1e-12
            ):
                copies[t] += 1
                i -= a
                j -= b
                found = True
                break
        if not found:
            break
    return copies
