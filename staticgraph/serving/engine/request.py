"""A request, from the queue to its caller's answer; its graphs and outputs in batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.containers import parts_of, with_leaves
from staticgraph.batches.batch.predictions import Predictions, is_dense
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import BatchFailed
from staticgraph.serving.bodies.checked_graphs import first_line
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.steps.computation.model_call import Path
from staticgraph.store.graph_columns import GraphColumns, assembled
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.joined_parts import gathered
from staticgraph.text.how_many import how_many

log: logging.Logger = logging.getLogger("staticgraph.serving")


class Request:
    """The graphs of one ``submit`` call; they may run in several batches and are answered together.

    Args:
        store: has the graphs, and perhaps those of other requests; no caller holds it.
        graphs: their numbers in the store.
        arrived: the time of arrival by the server's clock, in seconds.

    Attributes:
        future: the future that receives the answer.
        over: whether it is answered, failed or cancelled; its remaining graphs need not run.
    """

    def __init__(self, store: GraphColumns, graphs: range, arrived: float) -> None:
        self.store: GraphColumns = store
        self.graphs: range = graphs
        self.arrived: float = arrived
        self.future: Future[Any] = Future()
        self.over: bool = False
        self._begun = False
        self._order: list[int] = []  # of the graphs that ran
        self._outputs: list[dict[Path, Any]] = []
        self._form: Any = None

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def sizes(self) -> IntArray:
        """``[n, C]``: the sizes of the graphs."""
        return self.store.sizes[self.graphs.start : self.graphs.stop]

    def begin(self) -> bool:
        """Marks the request as running, after which it cannot be cancelled; returns False if it is
        over or was cancelled, so that its graphs need not run. The caller holds the lock."""
        if not (self.over or self._begun):
            self._begun = True
            try:
                self.over = not self.future.set_running_or_notify_cancel()
            except Exception:  # its caller already set a result; this affects no other request
                self.over = True
        return not self.over

    def end(self) -> bool:
        """Marks the request as over; True for the one call that must then answer it. The caller
        holds the lock."""
        first, self.over = self.begin(), True
        return first

    def take(self, graphs: list[int], outputs: dict[Path, Any], form: Any) -> None:
        """Takes the outputs of some of the graphs, as of :func:`_rows`, and their containers."""
        self._order += graphs
        self._outputs.append(outputs)
        self._form = form

    @property
    def complete(self) -> bool:
        """Whether all graphs have their outputs."""
        return len(self._order) == len(self)

    def outcome(self) -> Any:
        """The answer once it is complete, or a :class:`BatchFailed` if the outputs of several
        batches cannot be combined (different keys or shapes)."""
        try:
            paths = self._outputs[-1]  # in the order of the last containers
            leaves = (
                _merged([rows[path] for rows in self._outputs], self._order) for path in paths
            )
            return with_leaves(self._form, leaves)
        except BaseException as error:  # a container of the model's own class may do anything
            return batch_failed(
                f"a request of {how_many(len(self), 'graph')} ran in "
                f"{how_many(len(self._outputs), 'batch')}, whose outputs do not go together "
                f"({type(error).__name__}: {first_line(error)}): ask for fewer at a time, or give "
                "outputs of the same form and width from every batch",
                error,
            )

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


def batch_failed(message: str, cause: BaseException) -> BatchFailed:
    """An error for one caller."""
    error = BatchFailed(message)
    error.__cause__ = cause
    return error


class Piece(NamedTuple):
    """One graph of a request, by its number in the request's store."""

    request: Request
    graph: int


def requests_of(pieces: Sequence[Piece]) -> list[Request]:
    """The requests of the pieces, each once, in order."""
    return [request for request, _ in groupby(pieces, lambda piece: piece.request)]


def concatenated(parts: Sequence[tuple[GraphColumns, range | IntArray]]) -> GraphStore:
    """One store of some graphs of stores that have the same fields, in the order given, in the
    dtypes that a model sees; there is at least one part."""
    for store, graphs in parts:
        store.verify(np.asarray(graphs))
    schema = parts[0][0].schema
    arrays = gathered(parts, {f"column.{field.name}": field.dtype for field in schema})
    return assembled(GraphStore, schema, arrays, name="requests")


def store_of(pieces: Sequence[Piece]) -> GraphStore:
    """One store of the pieces, in order."""
    parts = groupby(pieces, lambda piece: piece.request.store)
    return concatenated([(part, np.array([piece.graph for piece in own])) for part, own in parts])


def hand_out(pieces: Sequence[Piece], store: GraphStore, batch: StaticBatch, out: Any) -> None:
    """Gives each request its part of what a model returned for a batch of a store of the pieces."""
    leaves, form = dict(_rows(store, batch, out)), with_leaves(out, repeat(None))
    first = 0
    for request, own in groupby(pieces, lambda piece: piece.request):
        graphs = [piece.graph for piece in own]
        here = slice(first, first + len(graphs))
        first = here.stop
        part = {k: v[here] if isinstance(v, Tensor | list) else v for k, v in leaves.items()}
        request.take(graphs, part, form)


def _rows(
    store: GraphColumns, batch: StaticBatch, out: Any, path: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """Yields the path of each leaf in what a model returned for a batch of all graphs of a store,
    with its rows on the CPU: ``[n, ...]`` if each graph has one row, a list of one tensor per
    graph, or what is no tensor.

    Raises:
        ValueError: an output is a scalar tensor, a single number for the graphs of all callers.
        TypeError: an output is of a type that a model may not return.
    """
    if (parts := parts_of(out)) is not None:
        for key, value in parts:
            yield from _rows(store, batch, value, (*path, key))
        return
    if isinstance(out, Tensor) and not out.dim():
        name = "".join(f"[{key!r}]" for key in path)
        raise ValueError(
            f"the model's output{name} is one number for all graphs of a batch, which are of "
            "several callers: leave it out with forward=lambda model, batch: ..."
        )
    if isinstance(out, Tensor) and batch.level_of(out) == "graph" and not is_dense(batch, out):
        yield path, out[: len(store)].detach().to("cpu", copy=True)  # without cutting it in graphs
        return
    predictions = Predictions(store)
    predictions.add(batch, out)
    yield path, predictions.in_order()


def _merged(pieces: list[Any], graphs: list[int]) -> Any:
    """The rows of several batches as one, in the order of the graphs' numbers."""
    if len(pieces) == 1 or not isinstance(pieces[0], Tensor | list):
        return pieces[0]
    order = np.argsort(graphs)
    if isinstance(pieces[0], Tensor):
        return torch.cat(pieces)[torch.from_numpy(order)]
    rows = list(chain(*pieces))
    return [rows[place] for place in order]
