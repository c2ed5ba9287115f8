"""The answers for one process until they are fetched: a queue of completions.

The problem: a line to another process gives back hundreds of answers a second, and a future each,
with its condition, its callback and a thread that wakes for it, costs more than the answer. The
idea: a ticket with a number is all that a request holds; what is answered is put here, and whoever
fetches is woken once for all answers of a batch. The invariant: each ticket's answer is fetched
once.
"""

from __future__ import annotations

import queue
from collections import deque
from typing import Any, NamedTuple


class Completion(NamedTuple):
    """What is given for a ticket: a value, or an error."""

    number: int
    value: Any
    error: BaseException | None


class CompletionQueue:
    """The answers of one line."""

    def __init__(self) -> None:
        self._done: deque[Completion] = deque()
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def put(self, done: Completion) -> None:
        """From any thread; :meth:`notify` follows."""
        self._done.append(done)

    def notify(self) -> None:
        """Wakes who fetches, if anything is there."""
        if self._done:
            self._wakes.put(True)

    def close(self) -> None:
        """Nobody fetches any more."""
        self._wakes.put(False)

    def fetch(self) -> list[Completion] | None:
        """Waits, and takes all that is there; None once it is closed."""
        goes_on = self._wakes.get()
        while goes_on and not self._wakes.empty():
            goes_on = self._wakes.get()
        found = []
        while self._done:
            found.append(self._done.popleft())
        return found if goes_on else None


class Ticket:
    """A number for which an answer is due: as much of a future as a server asks of one."""

    completions: CompletionQueue
    number: int

    __slots__ = ("completions", "number")

    def __init__(self, completions: CompletionQueue, number: int) -> None:
        self.completions, self.number = completions, number

    def set_running_or_notify_cancel(self) -> bool:
        """It runs: nobody cancels over a line."""
        return True

    def cancelled(self) -> bool:
        """Never."""
        return False

    def set_result(self, value: Any) -> None:
        """The answer."""
        self.completions.put(Completion(self.number, value, None))

    def set_exception(self, error: BaseException) -> None:
        """What there is in its place."""
        self.completions.put(Completion(self.number, None, error))
