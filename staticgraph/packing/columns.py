"""Column generation: the linear relaxation of packing, and the patterns that solve it.

The problem: with one variable per possible pattern, packing is an integer linear program (Gilmore
and Gomory 1961, "A linear programming approach to the cutting-stock problem"), but there are far
too many patterns. The idea: solve its relaxation over a few, take the prices that the solution puts
on the sizes, add patterns that are worth more than a pack at these prices (:mod:`.pricing`), and
repeat.

The invariant: :attr:`ColumnGeneration.proven` is a valid lower bound whenever the loop stops
(Farley 1990, "A note on bounding a class of linear programming problems": the value of all graphs
divided by the worth of the best pattern), also on a coarse grid.

It needs SciPy (``pip install scipy``).
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.packing.packing_result import Packing
from staticgraph.packing.pricing import (
    GAIN,
    Grid,
    Patterns,
    Prices,
    best_patterns,
    trimmed,
    worth_of_rooms,
)
from staticgraph.sizes.whole_numbers import IntArray

# Patterns added per solution of the linear program.
PATTERNS_A_ROUND = 250
# The prices tried are mixed with the best so far (Wentges 1997, "Weighted Dantzig-Wolfe
# decomposition"): 89 rounds instead of 122 on ogbg-molhiv, half the time.
TRUST = 0.8


class ColumnGeneration:
    """The relaxation over the patterns so far, for sizes on a grid and their counts.

    Attributes:
        columns: the patterns.
        solved: linear programs solved so far.
        relaxed: the value of the last one; the true relaxation lies between ``proven`` and this.
        proven: no packing has fewer packs than this.
        trusted: ``[K]`` the prices that prove it.
        amounts: ``[columns]`` how often each pattern is used in the last solution.
    """

    solved: int
    relaxed: float
    proven: float

    def __init__(
        self,
        grid: Grid,
        demand: IntArray,
        limits: tuple[IntArray, IntArray],
        columns: Columns,
        trusted: Prices | None = None,
    ) -> None:
        """``limits`` are ``[K, C]`` sizes and ``[C]`` limits that patterns must keep exactly."""
        self._optimize = scipy_optimize()
        self._grid, self._demand, self._limits = grid, demand, limits
        self.columns = columns
        self.solved, self.relaxed = 0, math.inf
        self.amounts: NDArray[np.float64] = np.zeros(columns.count)
        self.prices: Prices = np.zeros(len(demand))
        by_volume, self.proven = _volume_prices(grid, demand)
        self.trusted: Prices = by_volume if trusted is None else trusted

    def solve(self) -> bool:
        """Solves the linear program over the current patterns; False where the solver fails."""
        result: Any = self._optimize.linprog(
            np.ones(self.columns.count),
            A_ub=-self.columns.matrix(len(self._demand)),
            b_ub=-self._demand.astype(np.float64),
            method="highs-ds",
        )
        self.solved += 1
        if result.status != 0:
            return False
        self.relaxed, self.amounts = float(result.fun), result.x
        self.prices = np.maximum(0.0, -result.ineqlin.marginals)
        return True

    def grow(self) -> int:
        """Adds patterns by the last solution's prices; returns how many. Zero means complete."""
        for tried in (TRUST * self.trusted + (1 - TRUST) * self.prices, self.prices):
            worth = worth_of_rooms(self._grid, tried)
            best = max(1.0, float(worth[tuple(self._grid.room)]))
            value = float(tried @ self._demand) / best
            if value > self.proven:
                self.proven, self.trusted = value, tried / best
            patterns = best_patterns(self._grid, tried, worth, self._demand, PATTERNS_A_ROUND)
            exact = trimmed(patterns, *self._limits, tried)
            added = self.columns.add(exact, self.prices)
            if added:
                return added
        return 0


class Columns:
    """Distinct patterns, each a column over the sizes."""

    def __init__(self) -> None:
        self._rows: list[IntArray] = []
        self._copies: list[IntArray] = []
        self._seen: set[bytes] = set()

    @property
    def count(self) -> int:
        """The number of patterns."""
        return len(self._rows)

    def column(self, index: int) -> tuple[IntArray, IntArray]:
        """The rows and copies of one pattern."""
        return self._rows[index], self._copies[index]

    def add(self, patterns: Patterns, prices: Prices | None = None) -> int:
        """Adds patterns that are new and, given prices, worth more than a pack; returns how many.

        The rows of each pattern must be ascending.
        """
        before = self.count
        for p in range(len(patterns.starts) - 1):
            entries = slice(patterns.starts[p], patterns.starts[p + 1])
            rows, copies = patterns.rows[entries], patterns.copies[entries]
            if not len(rows) or (prices is not None and prices[rows] @ copies <= 1.0 + GAIN):
                continue
            key = rows.tobytes() + copies.tobytes()
            if key not in self._seen:
                self._seen.add(key)
                self._rows.append(rows)
                self._copies.append(copies)
        return self.count - before

    def matrix(self, num_types: int) -> Any:
        """The patterns as a SciPy compressed sparse column matrix, ``[num_types, columns]``."""
        from scipy import sparse

        starts = np.cumsum([0, *map(len, self._rows)])
        copies = np.concatenate(self._copies).astype(np.float64)
        return sparse.csc_matrix(
            (copies, np.concatenate(self._rows), starts), shape=(num_types, self.count)
        )

    def within(self, rows: IntArray, num_types: int) -> Columns:
        """These patterns restricted to some of the ``num_types`` sizes, renumbered."""
        place = np.full(num_types, -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        part = Columns()
        for k in range(self.count):
            places = place[self._rows[k]]
            there = places >= 0
            if there.any():
                left = places[there]
                starts = np.array([0, len(left)])
                part.add(Patterns(starts, left, self._copies[k][there]))
        return part


def columns_of(packing: Packing, keep: IntArray) -> Patterns:
    """The patterns of a packing, over the kept rows of its histogram."""
    place = np.full(len(packing.histogram.counts), -1, dtype=np.int64)
    place[keep] = np.arange(len(keep))
    rows, owner = place[packing.types], packing.pattern_of_entry
    order = np.lexsort((rows, owner))
    order = order[rows[order] >= 0]
    starts = np.searchsorted(owner[order], np.arange(len(packing.counts) + 1))
    return Patterns(starts.astype(np.int64), rows[order], packing.copies[order])


def _volume_prices(grid: Grid, demand: IntArray) -> tuple[Prices, float]:
    """Prices that prove the volume bound on this grid: each size's share of the scarcest limit."""
    needed = demand @ grid.sizes / np.maximum(1, grid.room)
    scarce = int(np.argmax(needed))
    return grid.sizes[:, scarce] / max(1, int(grid.room[scarce])), float(needed[scarce])


def whole(packs: float) -> int:
    """Rounds up, with a tolerance of a millionth for the solver's rounding."""
    return math.ceil(packs - 1e-6)


def scipy_optimize() -> ModuleType:
    """Imports SciPy's optimizers.

    Raises:
        ImportError: SciPy is not installed; the message says how to get it.
    """
    try:
        from scipy import optimize
    except ImportError as error:
        raise ImportError(
            "linear programs need SciPy: pip install scipy. "
            "The volume bound and effort='fast' need nothing"
        ) from error
    return optimize
