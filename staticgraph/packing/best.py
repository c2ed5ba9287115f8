"""Packing close to its bound: column generation, then rounding its fractions step by step.

The problem: a packer that fills pack by pack ends 1 to 4% above the best at three or four graphs
per pack, since graphs it takes early are missing later. The idea: solve the linear relaxation
(:mod:`staticgraph.packing.columns`), which says, up to fractions, how often to use each pattern;
use each pattern as often as the integer part says, and solve again for the remaining graphs, with
new patterns for them, until few are left and the quick packers do the rest. With five or more
graphs per pack, and where the relaxation has no solution in time (thousands of sizes), packs are
removed one at a time and the others repaired by exchanges (:mod:`staticgraph.packing.repair`). Very
large graphs whose packs are hard to fill are packed first (:mod:`.giants`).

The invariant: the result never has more packs than the initial packing, and the returned bound is
proven wherever the search stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from staticgraph.packing.coarse import place_members
from staticgraph.packing.columns import ColumnGeneration, Columns, columns_of, scipy_optimize, whole
from staticgraph.packing.giants import giants_bound, packed_giants
from staticgraph.packing.packing_result import Packing, part_of, with_graphs
from staticgraph.packing.pricing import Grid, grid_of
from staticgraph.packing.repair import fewer_by_repair
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import Bar, bar

QuickPacker = Callable[[SizeHistogram, IntArray, int | None], Packing]

# The relaxation is solved to these relative gaps, one after the other, each time starting from the
# packs found at the previous one: usually the first is enough, and takes a fraction of a second.
NEAR = (2e-4, 2e-5, 2e-6)
# Rounds of new patterns per step, for the relaxation of the remaining graphs; a few are enough,
# since the patterns of the previous steps are available.
ROUNDS_A_STEP = 4
# The least share of the remaining packs that is fixed at each step.
SHARE = 0.08
# More sizes than this make linear programs of several seconds.
MOST_SIZES = 2000
# The share of the time limit after which no new work starts: a linear program takes half a second.
BEGUN = 0.93
# From this many graphs per pack on, exchanges come first, for this share of the time.
MANY_GRAPHS = 5
EXCHANGES = 0.3


def improve(
    start: Packing, quick: QuickPacker, *, time_limit: float, progress: bool = False
) -> Packing:
    """Searches for a packing with fewer packs than ``start``, and proves a bound.

    Args:
        start: the initial packing, returned with the bound where none better is found.
        quick: packs the graphs that are left in the end.
        time_limit: in seconds; work already under way is finished, so it may take a little longer.
        progress: whether to show progress.

    Raises:
        ImportError: SciPy is not installed.
    """
    until = time.perf_counter() + BEGUN * time_limit
    histogram, limits = start.histogram, start.limits
    best, bound = start, start.volume_bound
    if best.num_packs <= bound:
        return replace(best, proven=bound)
    scipy_optimize()  # raises now rather than after seconds of exchanges
    with bar(desc="packing", unit=" linear programs", show=progress) as shown:
        bound = max(bound, giants_bound(histogram, limits))
        if best.num_packs > bound:
            best = min(best, _giants_first(best, quick), key=lambda packing: packing.num_packs)
        if best.num_packs > bound and histogram.num_graphs >= MANY_GRAPHS * best.num_packs:
            best = _repaired(best, bound, until - (1 - EXCHANGES) * time_limit, shown)
        if best.num_packs <= bound:
            return replace(best, proven=bound)
        grid = grid_of(histogram, limits)
        if not grid.coarse and len(grid.keep) <= MOST_SIZES:
            for near in NEAR:
                search = _Search(grid, best, quick, until, shown, near)
                bound = max(bound, search.relax())
                if best.num_packs > bound:
                    best = search.whole_packs(bound)
                if best.num_packs <= bound or time.perf_counter() > until:
                    break
        if best.num_packs > bound:
            best = _repaired(best, bound, until, shown)
    return replace(best, proven=bound)


def _giants_first(start: Packing, quick: QuickPacker) -> Packing:
    """Giants with their companions, plus the quick packer's packs of all other graphs; ``start``
    where there are no giants."""
    giants, left = packed_giants(start.histogram, start.limits, start.max_graphs)
    return _with_rest(giants, left, quick) if giants.num_packs else start


def _with_rest(packs: Packing, left: IntArray, quick: QuickPacker) -> Packing:
    """These packs plus the quick packer's packs of the ``left`` ``[T]`` graphs of each size."""
    rest, rows = part_of(packs.histogram, left)
    return packs.join(quick(rest, packs.limits, packs.max_graphs), rows) if len(rows) else packs


def _repaired(best: Packing, bound: int, until: float, shown: Bar) -> Packing:
    """Reduces the number of packs by exchanges, unless there are very many graphs."""

    def show_packs(packs: int) -> None:
        """Shows the current number of packs and the bound."""
        shown.set_postfix_str(f"{how_many(packs, 'pack')}, at least {bound:,}")

    return fewer_by_repair(best, bound, until, shown=show_packs)


class _Search:
    """One search: the relaxation, then steps that fix whole packs."""

    def __init__(
        self,
        grid: Grid,
        start: Packing,
        quick: QuickPacker,
        until: float,
        shown: Bar,
        near: float = NEAR[0],
    ) -> None:
        self.grid, self.start, self.quick = grid, start, quick
        self.until, self.shown, self.near = until, shown, near
        self.demand = start.histogram.counts[grid.keep]
        sizes, self.limits = with_graphs(start.histogram, start.limits, start.max_graphs)
        self.sizes = np.ascontiguousarray(sizes[grid.keep])
        columns = Columns()
        columns.add(columns_of(start, grid.keep))
        self.generation = ColumnGeneration(grid, self.demand, (self.sizes, self.limits), columns)

    def relax(self) -> int:
        """The bound from the relaxation of the whole problem."""
        # Rounding takes time too, so a share of the time is kept for it.
        until = time.perf_counter() + 0.6 * (self.until - time.perf_counter())
        self._generate(self.generation, None, until)
        return whole(self.generation.proven)

    def whole_packs(self, bound: int) -> Packing:
        """The best packing found while rounding to whole numbers."""
        best = self.start
        left = self.demand.copy()
        fixed: list[tuple[IntArray, IntArray, int]] = []
        rows = np.arange(len(left))
        generation = self.generation
        while len(rows):
            times = _whole_part(generation)
            for k in np.flatnonzero(times):
                pattern, copies = generation.columns.column(int(k))
                fixed.append((rows[pattern], copies, int(times[k])))
                left[rows[pattern]] = np.maximum(0, left[rows[pattern]] - copies * times[k])
            candidate = self._completed(fixed)
            if candidate.num_packs < best.num_packs:
                best = candidate
            now = np.flatnonzero(left)
            if best.num_packs <= bound or not len(now) or time.perf_counter() > self.until:
                break
            places = np.searchsorted(rows, now)
            columns = generation.columns.within(places, len(rows))
            trusted = generation.trusted[places]
            rows = now
            part = self.grid._replace(sizes=self.grid.sizes[rows], keep=rows)
            limits = (self.sizes[rows], self.limits)
            generation = ColumnGeneration(part, left[rows], limits, columns, trusted)
            if not self._generate(generation, ROUNDS_A_STEP, self.until):
                break
        return best

    def _generate(self, generation: ColumnGeneration, rounds: int | None, until: float) -> bool:
        """Solves and adds patterns; False where no solution was found at all."""
        while generation.solve():
            self.shown.update(1)
            self.shown.set_postfix_str(
                f"between {generation.proven:,.1f} and {generation.relaxed:,.1f} packs"
            )
            near = generation.relaxed - generation.proven <= self.near * generation.relaxed
            same = whole(generation.proven) >= whole(generation.relaxed)
            late = time.perf_counter() > until
            if near or same or late or generation.solved == rounds or not generation.grow():
                return True
        return generation.solved > 1

    def _completed(self, fixed: list[tuple[IntArray, IntArray, int]]) -> Packing:
        """The packs fixed so far plus the quick packer's packs of all remaining graphs."""
        histogram = self.start.histogram
        starts = np.cumsum([0, *(len(rows) for rows, _, _ in fixed)])
        left = histogram.counts.copy()
        none, each = np.empty(0, np.int64), np.arange(len(left) + 1)
        packs = place_members(
            starts,
            np.concatenate([none, *(self.grid.keep[rows] for rows, _, _ in fixed)]),
            np.concatenate([none, *(copies for _, copies, _ in fixed)]),
            np.array([times for _, _, times in fixed], dtype=np.int64),
            each[:-1],
            each,
            left,
        )
        method = "column generation"
        packing = Packing(histogram, self.start.limits, self.start.max_graphs, *packs, method)
        return _with_rest(packing, left, self.quick)


def _whole_part(generation: ColumnGeneration) -> IntArray:
    """``[columns]`` how often each pattern is fixed.

    This is the integer part; where that is too little, the patterns nearest to one more are added.
    """
    times = np.floor(generation.amounts + 1e-6).astype(np.int64)
    wanted = max(1, int(SHARE * generation.amounts.sum()))
    if times.sum() < wanted:
        fraction = generation.amounts - times
        nearest = np.argsort(-fraction, kind="stable")[: wanted - int(times.sum())]
        times[nearest[fraction[nearest] > 1e-6]] += 1
    return times
