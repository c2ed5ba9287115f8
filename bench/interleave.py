"""Times contenders in turn, A B A B, so that a machine whose speed drifts slows all equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, np.ndarray]:
    """Runs every contender once per round; returns the seconds of each round, by contender.

    ``clock`` is ``time.process_time`` on a machine with other work, where contenders run in this
    process alone.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(warmup + rounds):
        for name, run in contenders.items():
            started = clock()
            run()
            seconds[name].append(clock() - started)
    return {name: np.array(times[warmup:]) for name, times in seconds.items()}


def spread(values: ArrayLike) -> dict[str, float]:
    """Returns the median and the 10th and 90th percentile."""
    low, middle, high = np.percentile(values, [10, 50, 90]).tolist()
    return {"median": middle, "p10": low, "p90": high}
