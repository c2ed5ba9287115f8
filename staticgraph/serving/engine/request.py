"""A request: one caller's graphs, from the queue to their answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from staticgraph.errors import BatchFailed
from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.serving.engine.completion_queue import CompletionQueue, Ticket
from staticgraph.serving.engine.error_words import words_of
from staticgraph.serving.engine.outputs import Output, answer, plain_of
from staticgraph.serving.engine.plain_values import plain
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.how_many import how_many

log: logging.Logger = logging.getLogger("staticgraph.serving")


class Request:
    """The graphs of one ``submit`` call; they may run in several batches and are answered together.

    Args:
        store: the arrays with the graphs, which no caller holds.
        arrived: the time of arrival by the server's clock, in seconds.
        first, last: the request has graphs ``first`` to ``last - 1``; to the end if ``last`` is
            None.
        due: receives the answer: a future, with tensors (a new one if None), or a ticket, with
            plain values.

    Attributes:
        future: the future or ticket that receives the answer.
        completions: the queue for its answer, if it has a ticket.
        listed: whether its output is taken as lists.
        over: whether it is answered, failed or cancelled; its remaining graphs need not run.
    """

    arrived: float
    store: GraphColumns | FlatGraphs
    first: int
    last: int

    __slots__ = (
        "_begun", "_found", "_lock", "_missing", "arrived", "completions", "first", "future",
        "last", "listed", "over", "store",
    )  # fmt: skip

    def __init__(
        self,
        store: GraphColumns | FlatGraphs,
        arrived: float,
        first: int = 0,
        last: int | None = None,
        due: Future[Any] | Ticket | None = None,
    ) -> None:
        self.store, self.arrived = store, arrived
        self.first, self.last = first, len(store) if last is None else last
        self.future: Future[Any] | Ticket = Future() if due is None else due
        self.completions: CompletionQueue | None = (
            due.completions if isinstance(due, Ticket) else None
        )
        self.listed: bool = False
        self.over: bool = False
        self._lock = threading.Lock()
        self._begun = False
        self._found: list[tuple[int, Output]] = []
        self._missing = len(self)

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def sizes(self) -> IntArray:
        """``[n, C]`` sizes of its graphs."""
        return self.store.sizes[self.first : self.last]

    def begin(self) -> bool:
        """Marks the request as running, after which it cannot be cancelled; returns False if it is
        over or was cancelled, so that its graphs need not run."""
        with self._lock:
            if not self._begun and not self.over:
                self._begun = True
                try:
                    self.over = not self.future.set_running_or_notify_cancel()
                except Exception:  # its caller already set a result; this affects no other request
                    self.over = True
            return not self.over

    def end(self) -> bool:
        """Marks the request as over; True for the one call that must then answer it."""
        if not self.begin():
            return False
        with self._lock:
            first, self.over = not self.over, True
        return first

    def wants_list(self, count: int) -> bool:
        """Whether it takes the output of ``count`` graphs as lists: if it has a ticket and these
        are all its graphs. Pieces from several batches are concatenated as tensors, whose shapes
        can be checked."""
        self.listed = self.completions is not None and count == len(self)
        return self.listed

    def take(self, graph: int, count: int, output: Output) -> bool:
        """Takes the output of consecutive graphs; True once all graphs have theirs.

        Args:
            graph: the position of the first graph in the request.
            count: the number of graphs.
            output: their output.
        """
        self._found.append((graph, output))
        self._missing -= count
        return self._missing == 0

    def outcome(self) -> Any:
        """The answer for the outputs taken, or a :class:`BatchFailed` if the outputs of several
        batches cannot be combined (different keys or shapes)."""
        self._found.sort(key=lambda item: item[0])
        try:
            if self.completions is None:
                return answer([output for _, output in self._found])
            if self.listed:
                return plain_of(self._found[0][1])
            return plain(answer([output for _, output in self._found]))
        except BaseException as error:  # a container of the model's own class may do anything
            words = f"{type(error).__name__}: {words_of(error)}"
            failed = BatchFailed(
                f"a request of {how_many(len(self), 'graph')} ran in "
                f"{how_many(len(self._found), 'batch')}, whose outputs do not go together "
                f"({words}): ask for fewer at a time, or give outputs of the same form and width "
                "from every batch"
            )
            failed.__cause__ = error
            return failed

    def answer(self, outcome: Any) -> None:
        """Gives the caller the answer; once, after :meth:`end`."""
        self._give(self.future.set_result, outcome)

    def fail(self, error: BaseException) -> None:
        """Gives the caller an error that no other request shares; once, after :meth:`end`."""
        self._give(self.future.set_exception, error)

    def _give(self, give: Callable[[Any], None], what: Any) -> None:
        """Sets the result. The caller's callbacks run here and may raise anything (``SystemExit``,
        say); other callers of the same batch must still be answered."""
        try:
            give(what)
        except BaseException:
            log.exception("a callback of a caller's future failed")


class Piece(NamedTuple):
    """One graph of a request."""

    request: Request
    graph: int


def requests_of(pieces: Iterable[Piece]) -> list[Request]:
    """The requests of the pieces, each once, in order."""
    return list({id(piece.request): piece.request for piece in pieces}.values())
