"""Turns, A B C C B A A B C ..., so that a machine whose speed drifts slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

# Fewer say nothing about which was faster in most rounds.
LEAST_ROUNDS = 5
MOST_ROUNDS = 50


def take_turns(
    sides: Mapping[str, Callable[[], object]],
    until: float,
    *,
    least: int = LEAST_ROUNDS,
    most: int = MOST_ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    told: Callable[[int], None] = lambda done: None,
) -> dict[str, list[float]]:
    """Runs every side once a round, and gives the seconds that each turn took.

    Args:
        sides: by name.
        until: by ``clock``; no round begins after it but the first ``least``.
        least, most: rounds.
        clock: seconds.
        told: is told after each turn how many were taken.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names, done = list(sides), 0
    for number in range(most):
        if number >= least and clock() >= until:
            break
        for name in names if number % 2 == 0 else reversed(names):
            started = clock()
            sides[name]()
            seconds[name].append(clock() - started)
            done += 1
            told(done)
    return seconds
