"""Blocks that do not narrow with the graphs: the widths that layers ask for, as functions of ``M``.

The problem: a layer that keeps ``k`` rows a graph lays nodes out in blocks of ``max(M, k)`` places,
which no sum of ``N, E, G, G*M`` is: flat while the largest graph has fewer than ``k`` nodes, rising
beyond, where it runs other operations, too. Bytes at a few widths do not tell where it bends. The
idea: not bytes but the widths that were asked for say so. A width above the capacity's ``M`` is a
floor ``k`` where every other reading has a block of ``max(M, k)``; where no reading has an ``M``
above it, it may as well be a width that is always the same, and one more capacity is read that
tells. Each side of a floor is fitted by itself, from as many readings as that takes.

The invariant: a floor is a number of the model's own, never one of the data's.
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

# Times nodes, edges and graphs of the smallest capacity; and the width: the widest of a side, one
# in the middle, or the narrowest.
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
# The form with most terms of those that a side may have; one more reading than it has terms.
COUNTED = TERMS["attention"]


def floors_of(readings: Readings) -> tuple[int, ...]:
    """The floors that all readings agree on, those that no largest graph passes included."""
    asked = [(capacity.max_graph_nodes, reading.widths) for capacity, reading in readings]
    wider = {width for largest, widths in asked for width in widths if width > largest}
    return tuple(
        k for k in sorted(wider) if all(max(largest, k) in widths for largest, widths in asked)
    )


def beyond(floors: Sequence[int], readings: Readings) -> list[Capacity]:
    """What tells the last floor from a width that is always the same: the smallest capacity with a
    larger graph; nothing where that was read."""
    if not floors or floors[-1] < max(c.max_graph_nodes for c, _ in readings):
        return []
    return [_of_width(readings[0][0], (1, 1, 1), 2 * (floors[-1] + 1))]


def sides_of(floors: Sequence[int]) -> tuple[Regime, ...]:
    """The capacities between floors, narrowest first; none where there is no floor."""
    if not floors:
        return ()
    return (*(Regime(low, high) for low, high in pairwise((0, *floors))), Regime(floors[-1]))


def wanted(side: Regime, capacities: Sequence[Capacity]) -> list[Capacity]:
    """What else to read for a fit of one side.

    Args:
        capacities: that were read, of any side; the smallest first.
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
    """So many times a capacity, with a largest graph of ``width`` nodes; with fewer graphs where it
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
