"""Turns in the order A B C C B A A B C ..., so that a drift in speed affects all sides alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

# With fewer rounds, it is not clear which side was faster in most of them.
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
    """Runs every side once per round, and returns the seconds of each turn.

    Args:
        sides: the functions that take a turn, by name.
        until: the time after which only the first ``least`` rounds begin.
        least, most: the smallest and largest number of rounds.
        clock: returns the time in seconds.
        told: called after each turn with the number of turns so far.
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
