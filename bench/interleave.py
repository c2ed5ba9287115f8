"""Times contenders in turn, A B A B, so that a machine whose speed drifts slows all equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np


class Timing(NamedTuple):
    """Seconds per round, and the speed relative to the first contender per round."""

    seconds: np.ndarray
    ratio: np.ndarray

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    until: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Runs every contender once per round.

    ``clock`` is ``time.process_time`` on a machine with other work, where contenders run in this
    process alone. ``ratio`` is how many times as fast as the first a contender is. After ``until``,
    by ``time.perf_counter``, no round begins except the warm-up and the first timed one.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warmup + rounds):
        if turn > warmup and time.perf_counter() > until:
            break
        for name, run in contenders.items():
            started = clock()
            run()
            if turn >= warmup:
                seconds[name].append(clock() - started)
    first = np.array(next(iter(seconds.values())))
    return {
        name: Timing(np.array(times), first / np.array(times)) for name, times in seconds.items()
    }
