"""One caller's graphs, on their way to one answer."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.store.graph_columns import GraphColumns


class Request:
    """The graphs of one call of ``submit``: they may run in several batches, and are answered
    together, once.

    Args:
        store: the graphs; arrays that no caller holds.
        arrived: by the server's clock, in seconds.

    Attributes:
        future: what the caller waits for.
        over: whether it is answered, failed or cancelled; what is left of it need not run.
    """

    __slots__ = (
        "_begun", "_lock", "_missing", "_rows", "_stacked", "arrived", "future", "over", "store"
    )  # fmt: skip

    def __init__(self, store: GraphColumns, arrived: float) -> None:
        self.store, self.arrived = store, arrived
        self.future: Future[Any] = Future()
        self.over = False
        self._lock = threading.Lock()
        self._begun = False
        self._rows: list[Any] = [None] * len(store)
        self._missing = len(store)
        self._stacked: Any = False

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

    def take(self, graph: int, rows: Any, stacked: Any) -> bool:
        """Takes one graph's output; True with the last one.

        Args:
            graph: its place in the request.
            rows: a tensor, or a dict of them.
            stacked: whether the answer is one tensor of all graphs' rows, as it is where the model
                gives each graph one; a dict of that where ``rows`` is one.
        """
        self._rows[graph] = rows
        self._missing -= 1
        self._stacked = stacked
        return self._missing == 0

    def answer(self) -> None:
        """Gives the caller what was taken; once, after :meth:`end`."""
        self.future.set_result(_answer(self._rows, self._stacked))


class Piece(NamedTuple):
    """One graph of a request."""

    request: Request
    graph: int


def rows_of(out: Any, graph: int) -> tuple[Any, Any]:
    """One graph's share of what :meth:`Predictions.in_order` gave, and whether such rows are
    stacked; where the model gives a dict, both are one."""
    if isinstance(out, dict):
        parts = {key: rows_of(value, graph) for key, value in out.items()}
        return {k: rows for k, (rows, _) in parts.items()}, {k: s for k, (_, s) in parts.items()}
    return out[graph], isinstance(out, Tensor)


def _answer(rows: list[Any], stacked: Any) -> Any:
    if isinstance(stacked, dict):
        return {key: _answer([each[key] for each in rows], stacked[key]) for key in stacked}
    return torch.stack(rows) if stacked else rows
