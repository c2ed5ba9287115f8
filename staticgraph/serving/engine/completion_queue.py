"""A queue of completions: the answers for one process until they are fetched.

The problem: the connection to another process returns hundreds of answers per second, and one
future per answer, with its condition, its callback and a thread wakeup, costs more than the answer.
The idea: a request holds only a ticket with a number; its answer is put into this queue, and the
thread that fetches is woken once for all answers of a batch. The invariant: each ticket's answer is
fetched once.
"""

from __future__ import annotations

import queue
from collections import deque
from typing import Any, NamedTuple


class Completion(NamedTuple):
    """The answer for a ticket: a value or an error."""

    number: int
    value: Any
    error: BaseException | None


class CompletionQueue:
    """The answers for one connection."""

    def __init__(self) -> None:
        self._done: deque[Completion] = deque()
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def put(self, done: Completion) -> None:
        """Adds an answer, from any thread; call :meth:`notify` afterwards."""
        self._done.append(done)

    def notify(self) -> None:
        """Wakes the fetching thread if there are answers."""
        if self._done:
            self._wakes.put(True)

    def close(self) -> None:
        """Closes the queue: :meth:`fetch` returns None from now on."""
        self._wakes.put(False)

    def fetch(self) -> list[Completion] | None:
        """Waits for answers and takes all of them; None once the queue is closed."""
        goes_on = self._wakes.get()
        while goes_on and not self._wakes.empty():
            goes_on = self._wakes.get()
        found = []
        while self._done:
            found.append(self._done.popleft())
        return found if goes_on else None


class Ticket:
    """The number of a request that awaits an answer, with the part of a future's interface that the
    server uses."""

    completions: CompletionQueue
    number: int

    __slots__ = ("completions", "number")

    def __init__(self, completions: CompletionQueue, number: int) -> None:
        self.completions, self.number = completions, number

    def set_running_or_notify_cancel(self) -> bool:
        """True: a ticket cannot be cancelled."""
        return True

    def cancelled(self) -> bool:
        """False: a ticket cannot be cancelled."""
        return False

    def set_result(self, value: Any) -> None:
        """Puts the answer into the queue."""
        self.completions.put(Completion(self.number, value, None))

    def set_exception(self, error: BaseException) -> None:
        """Puts an error into the queue in place of the answer."""
        self.completions.put(Completion(self.number, None, error))
