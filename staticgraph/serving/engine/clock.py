"""What time it is, and how a thread waits: one object, so that a test may have another."""

from __future__ import annotations

import threading
import time


class Clock:
    """The machine's own clock, which never goes back."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float | None) -> None:
        """Waits, holding the condition's lock, until it is notified or so many seconds have gone.

        Args:
            changed: is notified of what the waiting thread should look at.
            seconds: at most; for as long as it takes where None.
        """
        changed.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
