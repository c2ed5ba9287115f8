"""From readings to a fit: matched moments, wider graphs, and the sides of a fixed width.

A layer that keeps ``k`` rows per graph lays out nodes in blocks of ``max(M, k)`` places and runs
other operations where graphs are larger. The widths that layers request show it: a width above a
capacity's largest graph is a *floor* ``k`` if every other reading has a block of ``max(M, k)``.
Each side of a floor is read and fitted separately. A floor is a property of the model, never of the
data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from staticgraph.errors import FitRefused
from staticgraph.memory.counts import Form
from staticgraph.memory.fit import Fit, FitPiece, FitPoint, FloatArray, fit
from staticgraph.probing.reading import Reading
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many

Measured = tuple[Capacity, Reading]


@dataclass
class Fitting:
    """A fit in progress, which reads further capacities as it needs them.

    Attributes:
        readings: all readings so far, beginning with those chosen for the data.
        checked: a reading that is held out of the fit.
        form, typed: as for :func:`staticgraph.memory.fit.fit`.
        read: reads further capacities until memory runs out; returns the readings, and a note where
            it did.
        note: where memory ran out; then nothing more is read.
    """

    readings: list[Measured]
    checked: Measured | None
    form: Form | Literal["auto"]
    typed: bool
    read: Callable[[Sequence[Capacity]], tuple[list[Measured], str]]
    note: str = ""

    def run(self) -> Fit:
        """Returns the fit, after as many readings as it needs.

        Raises:
            FitRefused: as for :func:`staticgraph.memory.fit.fit`; for a side of a floor, it is
                named.
        """
        base = [capacity for capacity, _ in self.readings]
        floors = floors_of(self.readings)
        if floors and floors[-1] >= max(c.max_graph_nodes for c in base):
            # A graph wider than the last floor tells it from a width that is always the same.
            self._grow([_with_width(base[0], 2 * (floors[-1] + 1))])
            floors = floors_of(self.readings)
        if floors:
            bounds = [0, *floors]
            for above, upto in zip(bounds, [*floors, None], strict=True):
                self._grow(_between(base, above, upto))
            try:
                return self._pieces(bounds)
            except FitRefused:
                if not self.note:
                    raise
        return self._fit(self.readings, self.checked)

    def _grow(self, capacities: Sequence[Capacity]) -> bool:
        """Reads further capacities; returns whether any was read."""
        probed = {capacity for capacity, _ in self.readings}
        capacities = [c for c in dict.fromkeys(capacities) if c not in probed]
        if not capacities or self.note:
            return False
        further, self.note = self.read(capacities)
        self.readings = [*self.readings, *further]
        return bool(further)

    def _pieces(self, bounds: Sequence[int]) -> Fit:
        """One fit for the capacities above each bound, up to the next."""
        pieces: list[FitPiece] = []
        for above, upto in zip(bounds, [*bounds[1:], math.inf], strict=True):

            def between(measured: Measured, above: int = above, upto: float = upto) -> bool:
                """Whether the largest graph of the capacity is on this side."""
                return above < measured[0].max_graph_nodes <= upto

            held = self.checked if self.checked is not None and between(self.checked) else None
            try:
                fitted = self._fit(list(filter(between, self.readings)), held)
            except FitRefused as refusal:
                where = f"with more than {how_many(above, 'node')} in the largest graph"
                raise FitRefused(f"{where}: {refusal}") from None
            pieces.append(FitPiece(above, fitted))
        return pieces[0].fit._replace(pieces=tuple(pieces[1:]))

    def _fit(self, readings: Sequence[Measured], checked: Measured | None) -> Fit:
        moments = match_moments([reading for _, reading in readings])
        points = [
            FitPoint(capacity, reading.step, live)
            for (capacity, reading), live in zip(readings, moments, strict=True)
        ]
        held = None if checked is None else FitPoint(checked[0], checked[1].step)
        return fit(points, self.form, held, typed=self.typed)


def ascending(capacities: Iterable[Capacity]) -> list[Capacity]:
    """Distinct capacities, each costlier than the one before, so that growth can stop in time."""

    def cost(c: Capacity) -> tuple[int, Capacity]:
        """The approximate cost of a step at a capacity, in rows; the capacity breaks ties."""
        extra = sum(rows for _, rows in c.extra)
        return c.nodes + c.edges + extra + c.graphs * c.max_graph_nodes, c

    return sorted(set(capacities), key=cost)


def floors_of(readings: Sequence[Measured]) -> tuple[int, ...]:
    """The floors that all readings agree on, including those that no largest graph exceeds."""
    requested = [(capacity.max_graph_nodes, reading.widths) for capacity, reading in readings]
    wider = {width for largest, widths in requested for width in widths if width > largest}
    return tuple(
        k for k in sorted(wider) if all(max(largest, k) in widths for largest, widths in requested)
    )


def match_moments(readings: Sequence[Reading]) -> list[FloatArray | None]:
    """``[moments]`` of each reading, equally many; None for all where they cannot be matched.

    Usually a step runs the same operations at every capacity, and its moments match one by one.
    Where it does not (a block is cut at one capacity and not at another), operations that occur
    equally often in all steps are landmarks, and only the largest moment between two landmarks
    counts.
    """
    nothing: list[FloatArray | None] = [None] * len(readings)
    known = [(r.moments, r.operations) for r in readings]
    steps = [(m, o) for m, o in known if m is not None and o is not None]
    if len(steps) < len(readings):
        return nothing
    if all(np.array_equal(operations, steps[0][1]) for _, operations in steps):
        return [moments for moments, _ in steps]
    counts = [dict(zip(*np.unique(o, return_counts=True), strict=True)) for _, o in steps]
    common = [op for op in counts[0] if all(c.get(op) == counts[0][op] for c in counts)]
    marks = [np.isin(operations, common) for _, operations in steps]
    orders = [operations[mark] for (_, operations), mark in zip(steps, marks, strict=True)]
    if not len(orders[0]) or not all(np.array_equal(order, orders[0]) for order in orders):
        return nothing
    starts = [np.flatnonzero(mark) for mark in marks]
    if any(start[0] for start in starts):  # what comes before the first landmark
        apart = all(start[0] for start in starts)  # a part of its own, where every step has one
        starts = [np.append(0, start if apart else start[1:]) for start in starts]
    return [
        np.maximum.reduceat(moments, start)
        for (moments, _), start in zip(steps, starts, strict=True)
    ]


def _between(capacities: Sequence[Capacity], above: int, upto: int | None) -> list[Capacity]:
    """The capacities with largest graphs of more than ``above`` and at most ``upto`` nodes, in the
    same proportions to each other."""
    widest = 4 * (above + 1) if upto is None else upto
    most = max(capacity.max_graph_nodes for capacity in capacities)
    return [
        _with_width(c, max(above + 1, round(widest * c.max_graph_nodes / most))) for c in capacities
    ]


def _with_width(capacity: Capacity, width: int) -> Capacity:
    """A capacity with another largest graph; with fewer graphs where it is wider, so that blocks
    take about as much."""
    share = min(1.0, capacity.max_graph_nodes / width)
    return Capacity.distinct(
        max(capacity.nodes, width + capacity.node_reserve),
        capacity.edges,
        max(2, round(capacity.graphs * share)),
        width,
        capacity.extra,
        capacity.edge_reserve,
        capacity.node_reserve,
    )
