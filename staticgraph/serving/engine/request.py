"""One caller's graphs, on their way to one answer."""

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
    """The graphs of one call of ``submit``: they may run in several batches, and are answered
    together, once.

    Args:
        store: where the graphs are; arrays that no caller holds.
        arrived: by the server's clock, in seconds.
        first, last: the graphs are those from ``first`` to ``last``, less one; all where None.
        due: what is answered: a future, with tensors (one of its own where None), or a ticket, with
            plain values.

    Attributes:
        future: what is answered.
        completions: where its answer is put, if it has a ticket.
        listed: whether it was answered with lists.
        over: whether it is answered, failed or cancelled; what is left of it need not run.
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
        """``[n, C]`` of its graphs."""
        return self.store.sizes[self.first : self.last]

    def begin(self) -> bool:
        """Whether its graphs are to run: they are, unless it is over or the caller cancelled it,
        which is too late from here on."""
        with self._lock:
            if not self._begun and not self.over:
                self._begun = True
                try:
                    self.over = not self.future.set_running_or_notify_cancel()
                except Exception:  # its caller ended it himself, which is no matter of the others
                    self.over = True
            return not self.over

    def end(self) -> bool:
        """Whether whoever asks is the one to answer it: True once."""
        if not self.begin():
            return False
        with self._lock:
            first, self.over = not self.over, True
        return first

    def wants_list(self, count: int) -> bool:
        """Whether it takes so many graphs of a batch as lists: where it has a ticket, and these are
        all of them. Pieces of several batches are put together as tensors, which have shapes."""
        self.listed = self.completions is not None and count == len(self)
        return self.listed

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
        """Gives the caller his answer; once, after :meth:`end`."""
        self._give(self.future.set_result, outcome)

    def fail(self, error: BaseException) -> None:
        """Gives the caller an error of his own; once, after :meth:`end`."""
        self._give(self.future.set_exception, error)

    def _give(self, give: Callable[[Any], None], what: Any) -> None:
        """A caller's own callbacks run in here, and may do anything (``sys.exit``, say); those who
        wait for the same batch are answered all the same."""
        try:
            give(what)
        except BaseException:
            log.exception("a callback of a caller's future failed")


class Piece(NamedTuple):
    """One graph of a request."""

    request: Request
    graph: int


def requests_of(pieces: Iterable[Piece]) -> list[Request]:
    """Whose graphs these are, each request once, in their order."""
    return list({id(piece.request): piece.request for piece in pieces}.values())
