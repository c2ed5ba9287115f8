"""Chooses the way a bucket runs, from measured times alone.

A more elaborate way is taken only where it beats the simpler one in the median by :data:`MARGIN`,
and in more rounds than chance explains (the sign test). How far the rounds spread does not matter:
other load makes some of them several times as long, whichever way is faster. On a device that is
busy all the time recording gains nothing; there the times tie, and a tie goes to the simpler way.

Pure arithmetic on numbers: :mod:`staticgraph.runner.trials` does the measuring.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from staticgraph.files import document
from staticgraph.files.document import NOT_THERE

# Chosen, not derived: a smaller gain does not justify another way of running, and machines of
# varying speed show differences of this size between equal contenders.
MARGIN = 0.05
# The probability that as many rounds, or more, are won by chance: 5 of 5 rounds, or 15 of 20.
LUCK = 0.05
# How the reason begins where a way could perhaps run.
NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Contender:
    """One way and its time: milliseconds per step, or why it cannot run (``refused``)."""

    way: str
    rounds: int = 0
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    refused: str | None = None

    def __str__(self) -> str:
        if self.median_ms is None:
            lines = (self.refused or "not timed").splitlines()
            # A message of several lines may have its reason after a colon.
            why = " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")])
            return f"{self.way} {why if why.startswith(NOT_TRIED) else f'refused ({why})'}"
        return f"{self.way} {self.median_ms:.3g} ms ({self.p10_ms:.3g} to {self.p90_ms:.3g})"


@dataclass(frozen=True, slots=True)
class WayChoice:
    """The choice for one bucket's training step (``step``) or evaluation (``eval``): the way it
    runs.

    ``least_fill`` is the share of the bucket's rows below which eager, over a batch's own rows
    alone, takes less time: see :func:`least_fill`; 1 where a CPU runs all phases in eager.
    """

    bucket: int
    phase: str
    way: str
    reason: str
    contenders: tuple[Contender, ...] = ()
    least_fill: float = 0.0

    def __str__(self) -> str:
        numbers = "; ".join(map(str, self.contenders))
        if self.least_fill and self.way != "eager":
            numbers += f"; a batch that fills less than {self.least_fill:.0%}: eager, unpadded"
        return f"bucket {self.bucket} {self.phase}: {self.way}, {self.reason}: {numbers}"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WayChoice:
        """Rebuilds a choice from what ``dataclasses.asdict`` returned."""
        contenders = tuple(Contender(**contender) for contender in values["contenders"])
        return cls(**{**values, "contenders": contenders})


def choose(
    bucket: int,
    phase: str,
    times: Mapping[str, Sequence[float]],
    refused: Mapping[str, str] | None = None,
) -> WayChoice:
    """Chooses the way to run one bucket.

    Args:
        bucket: its number.
        phase: ``step``, ``eval`` or ``forward``.
        times: milliseconds per step of each way, one per round, simplest way first; the steps of a
            round ran one after another.
        refused: ways that cannot run, with the reason.

    Raises:
        ValueError: no way has a time, or the ways have different numbers of rounds.
    """
    if not times or len({len(t) for t in times.values()}) != 1 or not all(map(len, times.values())):
        raise ValueError(f"bucket {bucket} {phase}: every way needs one time a round, got {times}")
    best, *others = times
    reason = (
        "the only one timed" if not others else "the simplest; no other is faster by a clear margin"
    )
    for other in others:
        ratio = np.asarray(times[best]) / np.asarray(times[other])
        rounds, won, median = len(ratio), int((ratio > 1).sum()), float(np.median(ratio))
        luck = sum(comb(rounds, more) for more in range(won, rounds + 1)) / 2**rounds
        share = f"in {won / rounds:.0%} of the rounds"
        if median >= 1 + MARGIN and luck <= LUCK:
            reason = f"{median:.2f} times as fast as {best}, {share}"
            best = other
        elif best == "eager" and median > 1:
            reason = f"no clear margin: {other} is {median:.2f} times as fast, {share}"
    contenders = [
        Contender(way, len(t), *np.percentile(t, [50, 10, 90]).tolist()) for way, t in times.items()
    ]
    contenders += [Contender(way, refused=why) for way, why in (refused or {}).items()]
    return WayChoice(bucket, phase, best, reason, tuple(contenders))


def least_fill(choice: WayChoice, empty_ms: float) -> float:
    """Returns the share of a bucket's rows below which eager over real rows alone is faster.

    Eager takes a fixed time, for its calls, and one in proportion to its rows; every way takes the
    time of all rows of the bucket.

    Args:
        choice: one way per bucket, with times over all its rows.
        empty_ms: milliseconds of an eager step without rows.

    Returns:
        From 0 to 1; 0 where eager was chosen.
    """
    median_ms = {each.way: each.median_ms for each in choice.contenders}
    eager_ms, chosen_ms = median_ms["eager"], median_ms[choice.way]
    if choice.way == "eager" or eager_ms is None or chosen_ms is None or chosen_ms <= empty_ms:
        return 0.0
    return min(1.0, (chosen_ms - empty_ms) / (eager_ms - empty_ms))


def settled(times: Mapping[str, Sequence[float]]) -> bool:
    """Whether every round so far gives the same order, so that more would not change the choice.

    Args:
        times: as for :func:`choose`.
    """
    ratios = [np.asarray(a) / np.asarray(b) for a, b in combinations(times.values(), 2)]
    return all((ratio >= 1 + MARGIN).all() or (ratio < 1 + MARGIN).all() for ratio in ratios)


def save(path: str | Path, choices: Sequence[WayChoice], made_for: Mapping[str, Any]) -> None:
    """Writes choices, and what they were made for, as JSON with a checksum."""
    values = {"made_for": dict(made_for), "choices": [asdict(choice) for choice in choices]}
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    document.save(target, values)


def load(path: str | Path, made_for: Mapping[str, Any]) -> list[WayChoice]:
    """Reads what :func:`save` wrote.

    Raises:
        ValueError: the file holds no choices, or choices made for something else.
    """
    try:
        values = document.load(path)
        choices = [WayChoice.from_dict(choice) for choice in values["choices"]]
        origin = values["made_for"]
        if not isinstance(origin, dict):
            raise TypeError(f"made_for is {origin!r}")
    except NOT_THERE as error:
        raise ValueError(f"{path} holds no choices: {type(error).__name__}: {error}") from error
    expected = json.loads(json.dumps(dict(made_for)))
    if origin != expected:
        differ = sorted(k for k in {*origin, *expected} if origin.get(k) != expected.get(k))
        raise ValueError(
            f"{path} was made for another {', '.join(differ)}: "
            f"{ {k: origin.get(k) for k in differ} }, now { {k: expected.get(k) for k in differ} }"
        )
    return choices
