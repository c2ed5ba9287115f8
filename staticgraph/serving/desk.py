"""Where the answers for one line lie until they are fetched.

The problem: a line gives back hundreds of answers a second, and a future each, with its condition,
its callback and a thread that wakes for it, costs more than the answer. The idea: a ticket with a
number is all that a request holds; what is answered is laid here, and whoever fetches is woken once
for all answers of a batch. The invariant: each ticket's answer is fetched once.
"""

from __future__ import annotations

import queue
from collections import deque
from typing import Any, NamedTuple


class Laid(NamedTuple):
    """What is given for a ticket: a value, or an error."""

    number: int
    value: Any
    error: BaseException | None


class Desk:
    """The answers of one line."""

    def __init__(self) -> None:
        self._laid: deque[Laid] = deque()
        self._rung: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def lay(self, laid: Laid) -> None:
        """From any thread; :meth:`ring` follows."""
        self._laid.append(laid)

    def ring(self) -> None:
        """Wakes who fetches, if anything lies here."""
        if self._laid:
            self._rung.put(True)

    def close(self) -> None:
        """Nobody fetches any more."""
        self._rung.put(False)

    def fetch(self) -> list[Laid] | None:
        """Waits, and takes all that lies here; None once it is closed."""
        goes_on = self._rung.get()
        while goes_on and not self._rung.empty():
            goes_on = self._rung.get()
        found = []
        while self._laid:
            found.append(self._laid.popleft())
        return found if goes_on else None


class Ticket:
    """A number for which an answer is due: as much of a future as a server asks of one."""

    desk: Desk
    number: int

    __slots__ = ("desk", "number")

    def __init__(self, desk: Desk, number: int) -> None:
        self.desk, self.number = desk, number

    def set_running_or_notify_cancel(self) -> bool:
        """It runs: nobody cancels over a line."""
        return True

    def cancelled(self) -> bool:
        """Never."""
        return False

    def set_result(self, value: Any) -> None:
        """The answer."""
        self.desk.lay(Laid(self.number, value, None))

    def set_exception(self, error: BaseException) -> None:
        """What there is in its place."""
        self.desk.lay(Laid(self.number, None, error))
