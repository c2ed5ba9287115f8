"""From readings to a fit: matched moments, wider graphs, and the sides of a fixed width.

A layer that keeps ``k`` rows per graph lays out nodes in blocks of ``max(M, k)`` places and runs
other operations where graphs are larger. The widths that layers request show it: a width above a
capacity's largest graph is a *floor* ``k`` if every other reading has a block of ``max(M, k)``.
Each side of a floor is read and fitted separately. A floor is a property of the model, never of the
data.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from staticgraph.errors import FitRefused
from staticgraph.memory.fit import Fit, FitPoint, FloatArray, Form, capacities_above, fit
from staticgraph.probing.out_of_memory import is_out_of_memory
from staticgraph.probing.step_reading import Read, Reading
from staticgraph.sizes.capacity import Capacity

Measured = tuple[Capacity, Reading]


@dataclass
class Fitting:
    """A fit in progress, which reads further capacities as it needs them.

    Attributes:
        read: reads a step at a capacity.
        form, typed: as for :func:`staticgraph.memory.fit.fit`.
        readings: all readings so far, beginning with those chosen for the data.
        checked: a reading that is held out of the fit.
        note: where memory ran out; then nothing more is read.
    """

    read: Read
    form: Form | Literal["auto"]
    typed: bool
    readings: list[Measured] = field(default_factory=list[Measured])
    checked: Measured | None = None
    note: str = ""

    def begin(self, capacities: Sequence[Capacity], held_out: Capacity | None) -> bool:
        """Reads capacities in order, and the one to hold out; returns whether all were read.

        Where memory runs out, no point is held out.
        """
        self.readings, self.note = [], ""
        self._grow(capacities)
        complete = len(self.readings) == len(capacities)
        if held_out is not None and self._grow([held_out]):
            self.checked = self.readings.pop()
        return complete

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
            widest = max(c.max_graph_nodes for c in base)
            for above, upto in pairwise([0, *floors, 4 * (floors[-1] + 1)]):
                # In the same proportions to each other on each side.
                self._grow(
                    [
                        _with_width(c, max(above + 1, round(upto * c.max_graph_nodes / widest)))
                        for c in base
                    ]
                )
            try:
                return self._fit_sides([0, *floors])
            except FitRefused:
                if not self.note:
                    raise
        return self._fit(self.readings, self.checked)

    def _grow(self, capacities: Sequence[Capacity]) -> bool:
        """Reads further capacities until memory runs out; returns whether any was read.

        Other errors pass unchanged.
        """
        before = len(self.readings)
        for capacity in capacities:
            if self.note or any(capacity == measured for measured, _ in self.readings):
                continue
            try:
                self.readings.append((capacity, self.read(capacity)))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error).partition("\n")[0]
                self.note = f"memory ran out at {capacity}: {reason}"
                forget(error)
        return len(self.readings) > before

    def _fit_sides(self, bounds: Sequence[int]) -> Fit:
        """One fit for the capacities above each bound, up to the next."""
        fits: list[Fit] = []
        for above, upto in pairwise([*bounds, math.inf]):
            *readings, checked = [
                measured if measured and above < measured[0].max_graph_nodes <= upto else None
                for measured in (*self.readings, self.checked)
            ]
            try:
                fitted = self._fit(list(filter(None, readings)), checked)
            except FitRefused as refusal:
                raise FitRefused(f"{capacities_above(int(above))}: {refusal}") from None
            fits.append(fitted._replace(above=int(above)))
        return fits[0]._replace(pieces=tuple(fits[1:]))

    def _fit(self, readings: Sequence[Measured], checked: Measured | None) -> Fit:
        moments = match_moments([reading for _, reading in readings])
        points = [
            FitPoint(capacity, reading.step, live)
            for (capacity, reading), live in zip(readings, moments, strict=True)
        ]
        held = None if checked is None else FitPoint(checked[0], checked[1].step)
        return fit(points, self.form, held, typed=self.typed)


def forget(error: BaseException) -> None:
    """Releases the tensors that a failed step still holds.

    The frames of the traceback hold activations; autograd's queue holds what the failed backward
    had not reached, until the next backward of the thread (seen with torch 2.13).
    """
    traceback.clear_frames(error.__traceback__)
    with torch.enable_grad():
        torch.zeros((), requires_grad=True).sum().backward()


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

    Calls of operations that run equally often in all steps match one by one, and are usually all.
    Between two of these (a loop is longer, a result is shared), the largest moment counts.
    """
    counts = [Counter(operation for operation, _ in reading.moments) for reading in readings]
    alike = {
        operation
        for operation, count in (counts[0] if counts else Counter[Any]()).items()
        if all(each[operation] == count for each in counts)
    }
    if not alike:
        return [None] * len(readings)
    matched: list[dict[Any, int]] = []
    for reading in readings:
        here, calls = None, Counter[Any]()
        matched.append({here: 0})  # before the first of them
        for operation, live in reading.moments:
            if operation in alike:
                calls[operation] += 1
                here = operation, calls[operation]
            matched[-1][here] = max(matched[-1].get(here, 0), live)
    return [np.array([moments[call] for call in matched[0]], float) for moments in matched]


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
