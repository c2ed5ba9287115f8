"""What a run of a model computed, and how two runs differ by more than rounding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

# How many times rounding a difference must be.
CLEAR = 10.0


class Outcome(NamedTuple):
    """What a run of the model computed, each value by the name that an error calls it.

    Attributes:
        values: outputs, loss, gradients and buffers.
        scales: for each, the largest value of its kind.
        drew: whether the run drew random numbers.
    """

    values: dict[str, Tensor]
    scales: dict[str, float]
    drew: bool

    @property
    def finite(self) -> bool:
        """Whether all values are finite."""
        return all(bool(torch.isfinite(value).all()) for value in self.values.values())


class Difference(NamedTuple):
    """One value that differs between two outcomes."""

    name: str
    off: float

    @property
    def how(self) -> str:
        """The difference in words."""
        if self.off != self.off or self.off == float("inf"):
            return "more than any number (it is not finite)"
        return f"{self.off:.1e} of the largest"


def differing(expected: Outcome, found: Outcome, tolerance: float) -> list[Difference]:
    """Returns the values that differ by more than a tolerance.

    Outputs come first, then the loss, gradients and buffers. Values that only one side has, or that
    have another shape, are not compared.
    """
    differences = [
        Difference(name, _off(expected, found, name))
        for name in expected.values
        if name in found.values and expected.values[name].shape == found.values[name].shape
    ]
    return [each for each in differences if not each.off <= tolerance]


def _off(expected: Outcome, found: Outcome, name: str) -> float:
    a, b = expected.values[name], found.values[name]
    if not a.numel():
        return 0.0
    off = float((a.double() - b.double()).abs().max()) / expected.scales[name]
    return off if off == off else float("inf")


def first_clear(
    found: list[Difference], first: Outcome, nudged: Outcome | None
) -> Difference | None:
    """Returns the first difference that is larger than rounding explains.

    Rounding is large in a deep net in float32 with a gradient near zero, or where sums run in
    another order at every run.
    """
    for each in found:
        again = None if nudged is None else nudged.values.get(each.name)
        if nudged is None or again is None or again.shape != first.values[each.name].shape:
            return each
        if not each.off <= CLEAR * _off(first, nudged, each.name):
            return each
    return None


def largest_of(values: Iterable[Tensor]) -> float:
    """Returns the largest absolute value, as the scale that differences are measured by."""
    found = [float(v.detach().abs().max()) for v in values if v.numel()]
    return max([*found, 1e-6])
