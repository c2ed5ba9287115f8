"""A proven lower bound on the number of packs.

The volume bound says that the packs must hold all nodes and all edges; for small packs the true
minimum is far above it, because sizes do not add up to the limit. The idea: the linear relaxation
of the cutting-stock problem, with one variable per possible pattern, by column generation (Gilmore
and Gomory 1961, "A linear programming approach to the cutting-stock problem"). Its dual gives a
price to each size such that no pattern is worth more than one pack; the value of all graphs at
those prices is a lower bound on the number of packs. The best pattern at given prices is a knapsack
of two components, solved exactly by dynamic programming over the grid of limits.

The invariant: the bound returned is valid whenever the loop stops (Farley 1990, "A note on bounding
a class of linear programming problems": the value divided by the worth of the best pattern). Where
the grid is too large, sizes and limits are rounded down to a coarser one, which keeps the bound
valid but weaker. A limit on graphs is left out of the patterns and enters only by volume.

It needs SciPy (``pip install scipy``).
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from staticgraph.packing.columns import (
    ColumnGeneration,
    Columns,
    columns_of,
    scipy_optimize,
    whole,
)
from staticgraph.packing.fill import fill_histogram
from staticgraph.packing.giants import giants_bound
from staticgraph.packing.packing_result import Packing, checked_limits, volume_bound
from staticgraph.packing.pricing import grid_of
from staticgraph.sizes.histogram import SizeHistogram

# The most linear programs solved.
ROUNDS = 150


@dataclass(frozen=True, slots=True)
class PackingBound:
    """A proven lower bound on the number of packs.

    Attributes:
        packs: no packing has fewer packs than this: from the relaxation, from volume, or from the
            space that very large graphs leave empty (:mod:`staticgraph.packing.giants`).
        linear: the proven part of the relaxation's value, before rounding up.
        volume: the bound from volume alone.
        columns: patterns generated.
        rounds: linear programs solved.
        coarse: whether the grid was rounded, so that the relaxation itself may be stronger.
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
    """Computes the linear-programming bound of the cutting-stock formulation.

    Args:
        histogram: the sizes.
        limits: ``[C]`` usable limits.
        max_graphs: how many graphs a pack may hold; enters by volume.
        start: a packing whose patterns are the initial ones; made where None. Generation stops as
            soon as its number of packs is proven optimal.
        rounds: the most linear programs to solve; the bound is valid wherever it stops.

    Raises:
        ImportError: SciPy is not installed; the message says how to get it.
        GraphTooLarge: a single size exceeds a limit.
    """
    scipy_optimize()
    bounds = checked_limits(histogram, limits, max_graphs)
    volume = volume_bound(histogram, bounds, max_graphs)
    packing = start or fill_histogram(histogram, bounds, max_graphs=max_graphs)
    grid = grid_of(histogram, bounds)
    if packing.num_packs <= volume or not len(grid.keep):
        return PackingBound(volume, float(volume), volume, 0, 0, grid.coarse)
    columns = Columns()
    columns.add(columns_of(packing, grid.keep))
    # Patterns only have to fit the grid: exceeding the real limits keeps the bound valid.
    on_grid = (grid.sizes, grid.room)
    search = ColumnGeneration(grid, histogram.counts[grid.keep], on_grid, columns)
    while search.solved < rounds and whole(search.proven) < packing.num_packs:
        if not search.solve() or whole(search.proven) >= whole(search.relaxed):
            break
        if not search.grow():
            break
    packs = max(volume, whole(search.proven), giants_bound(histogram, bounds))
    return PackingBound(packs, search.proven, volume, columns.count, search.solved, grid.coarse)
