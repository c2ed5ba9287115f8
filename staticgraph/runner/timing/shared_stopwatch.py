"""Trials on several ranks: every rank decides by the same times.

The problem: a rank that finds its time limit spent, or another way faster, prepares and steps
differently from the rest, and a sum over ranks then waits for ever. The idea: every measurement is
replaced by that of the slowest rank, on all ranks, so that all of them decide alike; the slowest
rank is also the one that a step waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from staticgraph.distributed.ranks import Ranks
from staticgraph.runner.timing.auto import Auto, Stopwatch


class SharedStopwatch(Stopwatch):
    """A stopwatch that returns the slowest rank's times.

    Args:
        own: this rank's stopwatch.
        ranks: the ranks that measure.
    """

    def __init__(self, own: Stopwatch, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks
        self._begun = own.now()

    def now(self) -> float:
        """Returns seconds since this was made, the largest of all ranks."""
        return self._ranks.largest(self._own.now() - self._begun)

    def milliseconds(self, way: str, step: Callable[[], Any]) -> float:
        """Returns how long one step took on the slowest rank; raises on all if it does on one."""
        with self._ranks.together():
            taken = self._own.milliseconds(way, step)
        return self._ranks.largest(taken)


def shared(auto: Auto | None, ranks: Ranks | None) -> Auto | None:
    """Returns the same options, measured by :class:`SharedStopwatch` if there are several ranks."""
    if auto is None or ranks is None:
        return auto
    own = auto.stopwatch

    def stopwatch(device: torch.device) -> Stopwatch:
        """Makes a stopwatch whose times are the slowest rank's."""
        return SharedStopwatch(own(device), ranks)

    return replace(auto, stopwatch=stopwatch)
