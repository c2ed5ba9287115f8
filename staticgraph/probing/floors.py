"""Floors: block widths that layers request regardless of how small the graphs are.

The problem: a layer that keeps ``k`` rows per graph lays out nodes in blocks of ``max(M, k)``
places, which is not a sum of ``N, E, G, G*M``: it is constant while the largest graph has fewer
than ``k`` nodes and rises beyond, where it also runs different operations. Bytes at a few widths do
not show where it bends. The idea: the requested widths show it, not the bytes. A width above the
capacity's ``M`` is a floor ``k`` if every other reading has a block of ``max(M, k)``; where no
reading has an ``M`` above it, it may also be a constant width, and one more capacity is read to
decide. Each side of a floor is fitted separately, from as many readings as it needs.

The invariant: a floor is a property of the model, never of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from staticgraph.memory.counts import TERMS, counts_of
from staticgraph.memory.regime import Regime
from staticgraph.probing.reading import Reading
from staticgraph.sizes.capacity import Capacity

Readings = Sequence[tuple[Capacity, Reading]]

# Multiples of the nodes, edges and graphs of the smallest capacity; and the width: the widest of a
# side, a middle one, or the narrowest.
SHAPES = (
    ((1, 1, 1), "widest"),
    ((5, 5, 5), "middle"),
    ((7, 10, 10), "widest"),
    ((10, 7, 10), "widest"),
    ((10, 10, 7), "widest"),
    ((10, 10, 10), "narrowest"),
    ((10, 10, 10), "middle"),
    ((10, 10, 10), "widest"),
)
# The form with the most terms that a side may have; it needs one more reading than it has terms.
COUNTED = TERMS["attention"]


def floors_of(readings: Readings) -> tuple[int, ...]:
    """The floors that all readings agree on, including those that no largest graph exceeds."""
    asked = [(capacity.max_graph_nodes, reading.widths) for capacity, reading in readings]
    wider = {width for largest, widths in asked for width in widths if width > largest}
    return tuple(
        k for k in sorted(wider) if all(max(largest, k) in widths for largest, widths in asked)
    )


def beyond(floors: Sequence[int], readings: Readings) -> list[Capacity]:
    """The capacity to read that distinguishes the last floor from a constant width.

    It is the smallest one with a larger graph; none where such a capacity was read already.
    """
    if not floors or floors[-1] < max(c.max_graph_nodes for c, _ in readings):
        return []
    return [_of_width(readings[0][0], (1, 1, 1), 2 * (floors[-1] + 1))]


def sides_of(floors: Sequence[int]) -> tuple[Regime, ...]:
    """The regimes between floors, narrowest first; empty where there is no floor."""
    if not floors:
        return ()
    return (*(Regime(low, high) for low, high in pairwise((0, *floors))), Regime(floors[-1]))


def wanted(side: Regime, capacities: Sequence[Capacity]) -> list[Capacity]:
    """Lists the capacities still to be read for a fit of one side.

    Args:
        side: the regime to fit.
        capacities: the capacities read so far, on any side; the smallest first.
    """
    widest = 2 * (side.above + 1) if side.upto is None else side.upto
    narrowest = max(side.above + 1, -(-widest // 4))
    widths = {"widest": widest, "middle": (widest + narrowest) // 2, "narrowest": narrowest}
    there = [capacity for capacity in capacities if side.holds(capacity)]
    found: list[Capacity] = []
    for times, width in SHAPES:
        made = _of_width(capacities[0], times, widths[width])
        now = [*there, *found]
        if made in now:
            continue
        if len(now) <= len(COUNTED) or _rank([*now, made]) > _rank(now):
            found.append(made)
    return found


def _rank(capacities: Iterable[Capacity]) -> int:
    counts = [[counts_of(c)[term] for term in COUNTED] for c in capacities]
    return int(np.linalg.matrix_rank(counts / np.max(counts, axis=0), tol=1e-6)) if counts else 0


def _of_width(least: Capacity, times: Sequence[int], width: int) -> Capacity:
    """A multiple of a capacity with a largest graph of ``width`` nodes; with fewer graphs where it
    is wider, so that blocks take about as much."""
    nodes, edges, graphs = times
    share = min(1.0, least.max_graph_nodes / width)
    most = max(times)
    rows = [max(2, n * most) for _, n in least.extra]
    made = Capacity.distinct(
        max(least.nodes, width + least.node_reserve) * nodes,
        least.edges * edges,
        max(2, round(least.graphs * share * graphs)),
        width,
        [(name, n) for (name, _), n in zip(least.extra, rows, strict=True)],
        least.edge_reserve,
        least.node_reserve,
    )
    return replace(made, order_statistics=())
