"""A request: one caller's graphs, from the queue to their answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import leaves_of, parts_of, with_leaves, with_parts
from staticgraph.batches.batch.predictions import Predictions
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import BatchFailed
from staticgraph.serving.bodies.checked_graphs import first_line
from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.how_many import how_many


class OutputRows:
    """One output of some graphs; a leaf in the containers that the model returns.

    Args:
        rows: ``[n, ...]`` if each graph has one row, else a list with one tensor per graph.
    """

    def __init__(self, rows: Tensor | list[Tensor]) -> None:
        self.rows = rows


def output_of(store: GraphColumns, batch: StaticBatch, out: Any, name: str = "") -> Any:
    """The output of a batch of all graphs of a store, in their order, on the CPU, with
    :class:`OutputRows` in place of tensors.

    Raises:
        ValueError: an output is a scalar tensor, a single number for the graphs of all callers.
        TypeError: an output is of a type that a model may not return.
    """
    if (items := parts_of(out)) is not None:
        parts = [output_of(store, batch, value, f"{name}[{key!r}]") for key, value in items]
        return with_parts(out, parts)
    if isinstance(out, Tensor) and not out.dim():
        raise ValueError(
            f"the model's output{name} is one number for all graphs of a batch, which are of "
            "several callers: leave it out with forward=lambda model, batch: ..."
        )
    if isinstance(out, Tensor) and batch.level_of(out) == "graph":
        return OutputRows(out[: len(store)].detach().to("cpu", copy=True))
    predictions = Predictions(store)
    predictions.add(batch, out)
    values = predictions.in_order()
    return OutputRows(values) if isinstance(out, Tensor) else values


def cut(output: Any, first: int, last: int) -> Any:
    """The output of graphs ``first`` to ``last - 1``."""
    leaves = (
        OutputRows(leaf.rows[first:last]) if isinstance(leaf, OutputRows) else leaf
        for leaf in leaves_of(output)
    )
    return with_leaves(output, leaves)


def answer(pieces: Sequence[Any]) -> Any:
    """A caller's answer: the pieces concatenated in order, in the structure that the model
    returns."""
    if (items := parts_of(pieces[0])) is not None:
        columns = [dict(parts_of(piece) or ()) for piece in pieces]
        return with_parts(pieces[0], [answer([part[key] for part in columns]) for key, _ in items])
    if not isinstance(pieces[0], OutputRows):
        return pieces[0]
    parts = [piece.rows for piece in pieces]
    if isinstance(parts[0], Tensor):
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    return [row for part in parts for row in part]


log: logging.Logger = logging.getLogger("staticgraph.serving")


class Request:
    """The graphs of one ``submit`` call; they may run in several batches and are answered together.

    Args:
        graphs: the graphs, which no caller holds.
        arrived: the time of arrival by the server's clock, in seconds.

    Attributes:
        future: the future that receives the answer.
        over: whether it is answered, failed or cancelled; its remaining graphs need not run.
    """

    arrived: float
    graphs: GraphColumns | FlatGraphs

    def __init__(self, graphs: GraphColumns | FlatGraphs, arrived: float) -> None:
        self.graphs, self.arrived = graphs, arrived
        self.future: Future[Any] = Future()
        self.over: bool = False
        self._lock = threading.Lock()
        self._begun = False
        self._outputs: list[tuple[int, Any]] = []
        self._missing = len(self)

    def __len__(self) -> int:
        return len(self.graphs)

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

    def take(self, graph: int, count: int, output: Any) -> bool:
        """Takes the output of ``count`` consecutive graphs, of which ``graph`` is the first; True
        once all graphs have theirs."""
        self._outputs.append((graph, output))
        self._missing -= count
        return self._missing == 0

    def outcome(self) -> Any:
        """The answer for the outputs taken, or a :class:`BatchFailed` if the outputs of several
        batches cannot be combined (different keys or shapes)."""
        self._outputs.sort(key=lambda item: item[0])
        try:
            return answer([output for _, output in self._outputs])
        except BaseException as error:  # a container of the model's own class may do anything
            failed = BatchFailed(
                f"a request of {how_many(len(self), 'graph')} ran in "
                f"{how_many(len(self._outputs), 'batch')}, whose outputs do not go together "
                f"({type(error).__name__}: {first_line(error)}): ask for fewer at a time, or give "
                "outputs of the same form and width from every batch"
            )
            failed.__cause__ = error
            return failed

    def answer(self, outcome: Any) -> None:
        """Gives the caller the answer, or an error that no other request shares; once, after
        :meth:`end`."""
        try:
            if isinstance(outcome, BaseException):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except BaseException:  # of the caller's callbacks, which run here: SystemExit, say
            log.exception("a callback of a caller's future failed")


class Piece(NamedTuple):
    """One graph of a request."""

    request: Request
    graph: int


def requests_of(pieces: Iterable[Piece]) -> list[Request]:
    """The requests of the pieces, each once, in order."""
    return list({id(piece.request): piece.request for piece in pieces}.values())
