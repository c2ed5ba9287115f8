"""Trials on several ranks: every rank decides by the same times.

The problem: a rank that finds its limit spent, or another way faster, prepares and steps otherwise
than the rest, and a sum over ranks waits for ever. The idea: whatever is measured is the slowest
rank's, on all of them, so that all decisions come out alike; and it is the slowest rank that a
step waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from staticgraph.distributed.ranks import Ranks
from staticgraph.runner.timing.auto import Auto, Stopwatch


class SharedStopwatch(Stopwatch):
    """The slowest rank's times.

    Args:
        own: this rank's.
        ranks: who measures.
    """

    def __init__(self, own: Stopwatch, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks
        self._begun = own.now()

    def now(self) -> float:
        """Seconds since it was made, on the rank where they are most."""
        return self._ranks.largest(self._own.now() - self._begun)

    def milliseconds(self, way: str, step: Callable[[], Any]) -> float:
        """What one step took on the slowest rank."""
        return self._ranks.largest(self._own.milliseconds(way, step))


def shared(auto: Auto | None, ranks: Ranks | None) -> Auto | None:
    """The same options, measured by :class:`SharedStopwatch` where there are several ranks."""
    if auto is None or ranks is None:
        return auto
    own = auto.stopwatch

    def stopwatch(device: torch.device) -> Stopwatch:
        """A stopwatch whose times are the slowest rank's."""
        return SharedStopwatch(own(device), ranks)

    return replace(auto, stopwatch=stopwatch)
