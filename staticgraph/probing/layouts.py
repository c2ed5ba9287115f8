"""Capacities that distinguish how attention is laid out, where the probed ones do not.

At small capacities the blocks by size of a converted layer are a single block, as for dense
attention at every capacity, so the same sum of counts fits both; at twice the largest graph one
takes a third of the other. A single block also cannot show the memory that is live in addition
to the block being computed. So where several blocks are worth it, more readings follow: two that
tell whether the sum for one block holds, and, if not, as many as show what each block adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from staticgraph.memory.counts import LAYOUTS_OF, counts_of
from staticgraph.memory.fit import Fit
from staticgraph.memory.regime import Regime
from staticgraph.sizes.capacity import Capacity

# A simpler form that was exact before is kept if it misses the further readings by no more.
EXPLAINED = 0.03
# Terms of a form that depend on the layout.
BLOCKS = ("places", "pairs", "widest", "block")
# Multiples of the nodes, edges, graphs and largest graph of the costliest capacity.
GROWN = ((0.5, 0.5, 1, 2), (2, 2, 2, 2), (2, 2, 4, 4))
# Further ones, where the reader cannot tell which block is being computed.
UNTOLD = ((1, 1, 2, 2), (1, 1, 4, 2), (1, 1, 2, 4), (2, 2, 4, 1))
ONE, SEVERAL = Regime(several=False), Regime(several=True)
# For each of the two: few blocks, so that steps are short, and rows that vary independently.
APART: dict[Regime, tuple[tuple[float, ...], ...]] = {
    ONE: (
        (0.25, 0.25, 0.06, 1),
        (1, 1, 0.12, 1),
        (0.5, 1, 0.12, 0.5),
        (1, 0.5, 0.12, 0.5),
        (1, 1, 0.06, 0.5),
        (1, 1, 0.25, 0.25),
        (0.5, 0.5, 0.25, 0.12),
        (1, 1, 0.5, 0.12),
    ),
    SEVERAL: (
        (0.25, 0.5, 1, 2),
        (0.5, 0.25, 1, 2),
        (0.5, 0.5, 0.5, 3),
        (0.25, 0.25, 0.25, 4),
        (1, 1, 2, 1.5),
        (0.5, 1, 3, 1),
        (1, 0.5, 2, 2),
        (1, 1, 1, 3),
    ),
}
# One block of wider graphs than the data's, where none was read: kernels pad widths to whole tiles,
# which the data's widths alone cannot distinguish from a square.
WIDER = ((1, 1, 0.5, 2), (1, 1, 0.25, 4))
# The number of readings of a kind that suffices.
ENOUGH = 8


def more(found: Fit, capacities: Sequence[Capacity]) -> list[Capacity]:
    """Further capacities to read; empty where the layouts differ already, or where none matters.

    Args:
        found: the fit on ``capacities``.
        capacities: the capacities read so far.
    """
    matters = any(
        value and term in BLOCKS
        for plane in found.planes
        for term, value in zip(found.terms, plane, strict=True)
    )
    if not matters or any(_parts(capacity) for capacity in capacities):
        return []
    return [grown for grown in _grown(capacities[-1], GROWN) if _parts(grown)]


def apart(base: Capacity, capacities: Sequence[Capacity]) -> list[Capacity]:
    """Further capacities to read so that one block and several blocks can be fitted separately.

    Args:
        base: the costliest capacity chosen for the data.
        capacities: the capacities read so far.
    """
    widest = max((c.max_graph_nodes for c in capacities if ONE.holds(c)), default=0)
    found = []
    if widest <= base.max_graph_nodes:
        found = [wider for wider in _grown(base, WIDER) if ONE.holds(wider)]
    for regime, times in APART.items():
        have = sum(map(regime.holds, capacities))
        new = [c for c in _grown(base, times) if regime.holds(c) and c not in capacities]
        found += new[: max(0, ENOUGH - have)]
    return found


def untold(base: Capacity) -> list[Capacity]:
    """Further capacities with several blocks, where only peaks or moments of whole steps are known.

    Args:
        base: the costliest capacity chosen for the data.
    """
    return [grown for grown in _grown(base, UNTOLD) if _parts(grown)]


def explaining(found: Fit, readings: Sequence[tuple[Capacity, float]]) -> Fit | None:
    """The fit with the layout that explains the bytes of all readings to 3%, or None."""
    fits = [found._replace(layout=layout) for layout in LAYOUTS_OF[found.form]]

    def worst(fit: Fit) -> float:
        """The largest relative error over the readings."""
        return max(abs(fit.predict(capacity) / nbytes - 1) for capacity, nbytes in readings)

    best = min(fits, key=worst)
    return best._replace(residual=worst(best)) if worst(best) <= EXPLAINED else None


def _parts(capacity: Capacity) -> bool:
    """Whether the layouts have different counts at this capacity."""
    one, several = counts_of(capacity), counts_of(capacity, "auto")
    return any(one[term] != several[term] for term in BLOCKS)


def _grown(capacity: Capacity, times: Sequence[tuple[float, ...]]) -> list[Capacity]:
    return [_times(capacity, *each) for each in times]


def _times(capacity: Capacity, n: float, e: float, g: float, m: float) -> Capacity:
    largest = max(1, round(capacity.max_graph_nodes * m))
    made = Capacity.distinct(
        max(round(capacity.nodes * n), largest + capacity.node_reserve),
        round(capacity.edges * e),
        max(2, round(capacity.graphs * g)),
        largest,
        [(name, max(2, round(rows * max(n, e)))) for name, rows in capacity.extra],
        capacity.edge_reserve,
        capacity.node_reserve,
    )
    return replace(made, order_statistics=())
