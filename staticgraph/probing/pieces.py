"""Readings to a fit: one for all capacities, or one for each regime in which steps run alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from staticgraph.errors import FitRefused
from staticgraph.memory.fit import Fit, Form, Point, fit
from staticgraph.memory.regime import Regime
from staticgraph.probing.aligned import aligned
from staticgraph.probing.reading import Reading
from staticgraph.sizes.capacity import Capacity

Measured = tuple[Capacity, Reading]


class Fitting(NamedTuple):
    """How readings are fitted, the same for every regime.

    Attributes:
        form: as for :func:`staticgraph.memory.fit.fit`.
        typed: as there.
        counted: as there.
    """

    form: Form | Literal["auto"]
    typed: bool
    counted: bool

    def of(
        self,
        readings: Sequence[Measured],
        checked: Measured | None,
        regimes: Sequence[Regime] = (),
    ) -> Fit:
        """One fit of all readings, or one of each regime's.

        Raises:
            FitRefused: as for :func:`staticgraph.memory.fit.fit`; of a regime it names which.
        """
        if not regimes:
            return self._one(readings, checked)
        fits = []
        for regime in regimes:
            own = [(c, reading) for c, reading in readings if regime.holds(c)]
            held = checked if checked is not None and regime.holds(checked[0]) else None
            try:
                fits.append((regime, self._one(own, held)))
            except FitRefused as refusal:
                raise FitRefused(f"of {regime}: {refusal}") from None
        # What stands for the largest capacity stands for all that no other piece holds.
        last = readings[-1][0] if checked is None else checked[0]
        whole = next(fitted for regime, fitted in fits if regime.holds(last))
        pieces = tuple((regime, fitted) for regime, fitted in fits if fitted is not whole)
        return whole._replace(pieces=pieces)

    def _one(self, readings: Sequence[Measured], checked: Measured | None) -> Fit:
        held = None if checked is None else Point(checked[0], checked[1].step)
        return fit(points_of(readings), self.form, held, typed=self.typed, counted=self.counted)


def points_of(readings: Sequence[Measured]) -> list[Point]:
    """What is fitted of readings, their moments matched where they can be."""
    moments = aligned([reading for _, reading in readings])
    return [
        Point(capacity, reading.step, seen)
        for (capacity, reading), seen in zip(readings, moments, strict=True)
    ]
