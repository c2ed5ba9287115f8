"""From readings to a fit: one for all capacities, or one per regime in which steps run alike.

The first readings determine which further ones are needed: where a layer requested blocks of a
fixed width (:mod:`staticgraph.probing.floors`), and where attention goes through several blocks at
larger capacities (:mod:`staticgraph.probing.layouts`). Readings that no single sum explains are
fitted per regime, and the better of the two fits is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from staticgraph.errors import FitRefused
from staticgraph.memory.counts import LAYOUTS_OF, Form
from staticgraph.memory.fit import EXACT_RESIDUAL, GOOD_RESIDUAL, Fit, FitPoint, fit
from staticgraph.memory.regime import Regime
from staticgraph.probing.aligned import aligned
from staticgraph.probing.floors import beyond, floors_of, sides_of, wanted
from staticgraph.probing.layouts import ONE, SEVERAL, apart, explaining, more, untold
from staticgraph.probing.loops import parts_of
from staticgraph.probing.reading import Reading
from staticgraph.sizes.capacity import Capacity

Measured = tuple[Capacity, Reading]


@dataclass
class Fitting:
    """A fit in progress, which reads further capacities as it needs them.

    Attributes:
        readings: all readings so far, beginning with those chosen for the data.
        checked: a reading that is held out of the fit.
        form: as for :func:`staticgraph.memory.fit.fit`.
        typed: as there.
        counted: as there.
        read: reads further capacities until memory runs out; returns the readings, and a note where
            it did.
        note: where memory ran out; then nothing more is read.
    """

    readings: list[Measured]
    checked: Measured | None
    form: Form | Literal["auto"]
    typed: bool
    counted: bool
    read: Callable[[Sequence[Capacity]], tuple[list[Measured], str]]
    note: str = ""

    def found(self) -> Fit:
        """Returns the fit, after as many readings as it needs.

        Raises:
            FitRefused: as for :func:`staticgraph.memory.fit.fit`; for a regime, it is named.
        """
        base = self._capacities[-1]
        sides = self._sides()
        whole = self._tried(sides)
        if sides and self.note and isinstance(whole, FitRefused):
            sides, whole = (), self._tried(())  # using only what could be read
        unexplained = _worst(whole) > (EXACT_RESIDUAL if self._loops else GOOD_RESIDUAL)
        if isinstance(whole, Fit) and self._grow(more(whole, self._capacities)):
            steps = [(capacity, reading.step) for capacity, reading in self.readings]
            kept = explaining(whole, steps)
            if kept is not None:
                return kept
            whole, unexplained = None, True
            if not self._loops:
                self._grow(untold(base))
        if unexplained and self._loops and not sides:
            self._grow(apart(base, self._capacities))
            together = self._in_turn(self.readings, self.checked)
            if together is not None and together.worst <= EXACT_RESIDUAL:
                return together
            parted = self._tried((ONE, SEVERAL))
            if isinstance(parted, Fit) and parted.worst <= GOOD_RESIDUAL:
                return parted
            whole = min([self._tried(()), parted], key=_worst)
        whole = whole or self._tried(sides)
        if isinstance(whole, FitRefused):
            raise whole
        return whole

    @property
    def _capacities(self) -> list[Capacity]:
        return [capacity for capacity, _ in self.readings]

    @property
    def _loops(self) -> bool:
        """Whether a step went through several blocks in turn."""
        return any(reading.blocks > 1 for _, reading in self.readings)

    def _grow(self, capacities: Sequence[Capacity]) -> bool:
        """Reads further capacities; returns whether any was read."""
        if not capacities or self.note:
            return False
        further, self.note = self.read(capacities)
        self.readings = [*self.readings, *further]
        return bool(further)

    def _sides(self) -> tuple[Regime, ...]:
        """The sides of every floor, each with enough readings."""
        floors = floors_of(self.readings)
        if self._grow(beyond(floors, self.readings)):
            floors = floors_of(self.readings)
        sides = sides_of(floors)
        self._grow([c for side in sides for c in wanted(side, self._capacities)])
        return sides

    def _tried(self, regimes: Sequence[Regime]) -> Fit | FitRefused:
        try:
            return self._of(regimes)
        except FitRefused as refusal:
            return refusal

    def _of(self, regimes: Sequence[Regime]) -> Fit:
        """One fit of all readings, or a separate one for each regime."""
        if not regimes:
            return self._one(self.readings, self.checked)
        fits = []
        for regime in regimes:
            own = [(c, reading) for c, reading in self.readings if regime.holds(c)]
            checked = self.checked
            held = checked if checked is not None and regime.holds(checked[0]) else None
            try:
                quick = self._in_turn(own, held) if regime == SEVERAL else None
                fitted = quick or self._one(own, held)
            except FitRefused as refusal:
                raise FitRefused(f"of {regime}: {refusal}") from None
            if regime == ONE and "auto" in LAYOUTS_OF[fitted.form]:
                fitted = fitted._replace(layout="auto")  # equal for one block, and now known
            fits.append((regime, fitted))
        # The fit for the first capacity applies to all that no other piece holds.
        first = self.readings[0][0]
        whole = next(fitted for regime, fitted in fits if regime.holds(first))
        return whole._replace(pieces=tuple(pair for pair in fits if pair[1] is not whole))

    def _one(self, readings: Sequence[Measured], checked: Measured | None) -> Fit:
        return self._fit(points_of(readings), checked, self.form)

    def _in_turn(self, readings: Sequence[Measured], checked: Measured | None) -> Fit | None:
        """The fit of blocks in turn; None where it does not hold or another form is requested."""
        points = points_of(readings)
        if self.form != "auto" or any(point.turns is None for point in points):
            return None
        try:
            return self._fit(points, checked, "series")
        except FitRefused:
            return None

    def _fit(
        self, points: Sequence[FitPoint], checked: Measured | None, form: Form | Literal["auto"]
    ) -> Fit:
        held = None if checked is None else FitPoint(checked[0], checked[1].step)
        return fit(points, form, held, typed=self.typed, counted=self.counted)


def _worst(found: Fit | FitRefused) -> float:
    return found.worst if isinstance(found, Fit) else float("inf")


def points_of(readings: Sequence[Measured]) -> list[FitPoint]:
    """The points to fit for some readings, with their moments matched where possible."""
    steps = [reading for _, reading in readings]
    moments, turns = aligned(steps), parts_of(steps) or [None] * len(steps)
    return [
        FitPoint(capacity, reading.step, seen, taken)
        for (capacity, reading), seen, taken in zip(readings, moments, turns, strict=True)
    ]
