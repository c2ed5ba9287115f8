"""One caller's graphs, on their way to one answer."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, NamedTuple

from staticgraph.errors import BatchFailed
from staticgraph.serving.flat_graphs import FlatGraphs
from staticgraph.serving.outputs import Output, answer
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_columns import GraphColumns


class Request:
    """The graphs of one call of ``submit``: they may run in several batches, and are answered
    together, once.

    Args:
        store: where the graphs are; arrays that no caller holds.
        arrived: by the server's clock, in seconds.
        first, last: the graphs are those from ``first`` to ``last``, less one; all where None.

    Attributes:
        future: what the caller waits for.
        over: whether it is answered, failed or cancelled; what is left of it need not run.
    """

    arrived: float
    store: GraphColumns | FlatGraphs
    first: int
    last: int

    __slots__ = (
        "_begun", "_found", "_lock", "_missing", "arrived", "first", "future", "last", "over",
        "store",
    )  # fmt: skip

    def __init__(
        self,
        store: GraphColumns | FlatGraphs,
        arrived: float,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        self.store, self.arrived = store, arrived
        self.first, self.last = first, len(store) if last is None else last
        self.future: Future[Any] = Future()
        self.over: bool = False
        self._lock = threading.Lock()
        self._begun = False
        self._found: list[tuple[int, Output]] = []
        self._missing = len(self)

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def sizes(self) -> IntArray:
        """``[n, C]`` of its graphs."""
        return self.store.sizes[self.first : self.last]

    def begin(self) -> bool:
        """Whether its graphs are to run: they are, unless it is over or the caller cancelled it,
        which is too late from here on."""
        with self._lock:
            if not self._begun and not self.over:
                self._begun = True
                self.over = not self.future.set_running_or_notify_cancel()
            return not self.over

    def end(self) -> bool:
        """Whether whoever asks is the one to answer it: True once."""
        if not self.begin():
            return False
        with self._lock:
            first, self.over = not self.over, True
        return first

    def take(self, graph: int, count: int, output: Output) -> bool:
        """Takes the output of some graphs; True with the last of them.

        Args:
            graph: the place of the first in the request; others follow it.
            count: how many.
            output: of these.
        """
        self._found.append((graph, output))
        self._missing -= count
        return self._missing == 0

    def outcome(self) -> Any:
        """What the caller gets for what was taken, a :class:`BatchFailed` where the outputs of his
        batches do not go together (other keys or shapes in each)."""
        self._found.sort(key=lambda item: item[0])
        try:
            return answer([output for _, output in self._found])
        except Exception as error:
            failed = BatchFailed(
                f"these {len(self)} graphs ran in {len(self._found)} batches, whose outputs do not "
                f"go together ({type(error).__name__}: {error}): ask for fewer at a time, or give "
                "outputs of the same form and width from every batch"
            )
            failed.__cause__ = error
            return failed

    def answer(self, outcome: Any) -> None:
        """Gives the caller what :meth:`outcome` gave; once, after :meth:`end`."""
        if isinstance(outcome, BatchFailed):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Piece(NamedTuple):
    """One graph of a request."""

    request: Request
    graph: int
