"""The time and the waiting of a thread, in one object that a test can replace."""

from __future__ import annotations

import threading
import time


class Clock:
    """The monotonic clock of the machine."""

    def now(self) -> float:
        """Seconds since an arbitrary fixed time."""
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float | None) -> None:
        """Waits until the condition is notified or the time is up; the caller holds its lock.

        Args:
            changed: the condition to wait for.
            seconds: the most seconds to wait; None for no limit.
        """
        changed.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
