"""A clock that a test advances, so that nothing waits for or depends on real time."""

from __future__ import annotations

import threading

from staticgraph.serving.engine.server import Clock


class ManualClock(Clock):
    """Time stands still until :meth:`advance`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._waiting: threading.Condition | None = None

    def now(self) -> float:
        return self._now

    def wait(self, changed: threading.Condition, seconds: float | None) -> None:
        if seconds is not None and seconds <= 0:
            return
        self._waiting = changed
        changed.wait()

    def advance(self, seconds: float) -> None:
        """Advances the time, and wakes the thread that waits for it, if any."""
        waiting = self._waiting
        if waiting is None:
            self._now += seconds
            return
        with waiting:
            self._now += seconds
            waiting.notify_all()
