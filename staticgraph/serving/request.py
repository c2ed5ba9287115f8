"""Requests: their queue, the choice of the next batch, and each one's part of the outputs.

The problem: single graphs arrive at any time, and a recorded step costs the same for one graph as
for a full bucket. The idea: each time, all waiting graphs are packed as a stream, in order of
arrival (:mod:`staticgraph.packing.stream`); a pack is ready once a graph no longer fitted into it,
or once its oldest graph has waited long enough. Buckets that differ only in their capacity, and not
in the size of the largest graph, form one line: graphs are packed by the limits of the largest
bucket, and a pack runs in the smallest bucket that holds it.

The invariant: every graph that was added is taken exactly once, no bucket is exceeded, and a graph
that has waited its time goes before any later one, so none starves. There is no thread, clock or
lock here: the caller passes the time as a number, and holds the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, compress, groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.batches.batch.containers import parts_of, with_leaves
from staticgraph.batches.batch.predictions import Predictions, is_dense
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import BatchFailed
from staticgraph.packing.placement import group_by_pack, homes, limits_array, place_batches
from staticgraph.packing.stream import pack_stream
from staticgraph.serving.checked_graphs import first_line
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.steps.computation.model_call import Path
from staticgraph.store.graph_columns import GraphColumns, assembled
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.joined_parts import gathered
from staticgraph.text.how_many import how_many

# The most waiting graphs considered: far more than a batch holds, packed in well under 1 ms.
LOOK_AT = 8192

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
        # Of each batch: the graphs that ran, the rows of each output, and its containers.
        self._parts: list[tuple[list[int], dict[Path, Any], Any]] = []

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def sizes(self) -> IntArray:
        """``[n, C]``: the sizes of the graphs."""
        return self.store.sizes[self.graphs.start : self.graphs.stop]

    def begin(self) -> bool:
        """Marks the request as running, after which it cannot be cancelled; returns False if it is
        over or was cancelled, so that its graphs need not run."""
        if not (self.over or self.future.running()):
            try:
                self.over = not self.future.set_running_or_notify_cancel()
            except Exception:  # its caller already set a result; this affects no other request
                self.over = True
        return not self.over

    def end(self) -> bool:
        """Marks the request as over; True for the one call that must then answer it."""
        first, self.over = self.begin(), True
        return first

    def take(self, graphs: list[int], outputs: dict[Path, Any], form: Any) -> None:
        """Takes the outputs of some of the graphs, as of :func:`_rows`, and their containers."""
        self._parts.append((graphs, outputs, form))

    @property
    def complete(self) -> bool:
        """Whether all graphs have their outputs."""
        return sum(len(graphs) for graphs, *_ in self._parts) == len(self)

    def outcome(self) -> Any:
        """The answer once it is complete, or a :class:`BatchFailed` if the outputs of several
        batches cannot be combined (different keys or shapes)."""
        graphs, outputs, forms = zip(*self._parts, strict=True)
        try:  # in the order of the last containers
            order = [*chain(*graphs)]
            leaves = (_merged([rows[path] for rows in outputs], order) for path in outputs[-1])
            return with_leaves(forms[-1], leaves)
        except BaseException as error:  # a container of the model's own class may do anything
            return batch_failed(
                f"a request of {how_many(len(self), 'graph')} ran in "
                f"{how_many(len(outputs), 'batch')}, whose outputs do not go together "
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


class Part(NamedTuple):
    """Graphs of one request that run in the same batch, by their numbers in its store."""

    request: Request
    graphs: list[int]


# ---------------------------------------------------------------------- the queue


class Waiting:
    """The queue of waiting graphs, of sizes with so many components; the buckets ascend."""

    def __init__(self, capacities: Sequence[Capacity], components: int, max_wait_s: float) -> None:
        self._limits = limits_array(capacities)
        self.max_wait_s: float = max_wait_s
        self._lines = _largest_of_lines(capacities, self._limits)
        self._graphs: list[tuple[Request, int]] = []
        self._sizes = [np.zeros((0, components), np.int64)]  # of the graphs, in several arrays
        self._chosen(np.zeros((1, components), np.int64), due=True)  # compiles the loops

    def __len__(self) -> int:
        return len(self._graphs)

    def unfit(self, sizes: IntArray) -> list[int]:
        """The positions of the graphs, given their sizes ``[n, C]``, that fit no bucket."""
        return np.flatnonzero(homes(sizes, self._lines) < 0).tolist()

    def add(self, request: Request) -> None:
        """Adds the graphs of a request; each graph must fit a bucket."""
        graphs, sizes = [(request, graph) for graph in request.graphs], request.sizes
        self._sizes.append(sizes)  # nothing fails from here, so both stay consistent
        self._graphs += graphs

    def due(self) -> float | None:
        """The time when the oldest graph has waited long enough; None if none waits."""
        return self._graphs[0][0].arrived + self.max_wait_s if self._graphs else None

    def take(self, now: float, everything: bool = False) -> tuple[list[Part], int] | None:
        """Removes and returns the graphs of the next batch, in order of arrival, and its bucket;
        None if none need to run yet, unless ``everything`` must run without waiting. ``now`` is in
        seconds, by the arrivals' clock."""
        over = [request.over or request.future.cancelled() for request, _ in self._graphs]
        if any(over):
            for request, _ in compress(self._graphs, over):
                request.begin()  # notifies the waiters of a cancelled future
            self._keep(~np.array(over))
        if (due := self.due()) is None:
            return None
        self._sizes = [np.concatenate(self._sizes)]
        if (chosen := self._chosen(self._sizes[0], everything or now >= due)) is None:
            return None
        bucket, places = chosen
        taken = groupby([self._graphs[place] for place in places], itemgetter(0))
        parts = [Part(request, [graph for _, graph in graphs]) for request, graphs in taken]
        rest = np.ones(len(self), bool)
        rest[places] = False
        self._keep(rest)
        return parts, bucket

    def clear(self) -> list[Request]:
        """Removes all graphs, and returns their requests."""
        requests = [*dict.fromkeys(request for request, _ in self._graphs)]
        self._keep(np.zeros(len(self), bool))
        return requests

    def _keep(self, stay: NDArray[np.bool_]) -> None:
        """Removes all graphs but those that stay."""
        self._graphs = [*compress(self._graphs, stay)]
        self._sizes = [np.concatenate(self._sizes)[stay]]

    def _chosen(self, sizes: IntArray, due: bool) -> tuple[int, IntArray] | None:
        """The bucket and the positions of the ready pack with the oldest graph; if the oldest graph
        of all is due, its pack, ready or not."""
        sizes = sizes[:LOOK_AT]
        lines = homes(sizes, self._lines)
        for line in dict.fromkeys(lines.tolist()):  # the oldest graph's line first
            capacity, members = self._lines[line], np.flatnonzero(lines == line)
            limits, most = capacity.size_limits, capacity.graph_limit
            packs = pack_stream(sizes, limits, max_graphs=most, order=members)
            grouped, bounds = group_by_pack(packs, int(packs.max()) + 1)
            first = members[grouped[: bounds[1]]]  # the pack that was opened first
            if due or len(bounds) > 2 or len(first) == most:
                allowed = self._limits.copy()  # of the line: not for larger graphs
                allowed[self._limits[:, 3] > capacity.max_graph_nodes] = -1
                bucket = place_batches(sizes, first, bounds[:2], allowed)[0]
                return int(bucket), first
        return None


def _largest_of_lines(capacities: Sequence[Capacity], limits: IntArray) -> list[Capacity]:
    """The largest bucket of each line: a line has buckets for the same size of the largest graph,
    each with at least the capacity of the one before in every component."""
    largest: list[int] = []
    for bucket in np.argsort(limits[:, 3], kind="stable").tolist():
        last = limits[largest[-1]] if largest else limits[bucket] + 1
        if last[3] == limits[bucket, 3] and (last <= limits[bucket]).all():
            largest.pop()
        largest.append(bucket)
    return [capacities[bucket] for bucket in largest]


# ---------------------------------------------------------------------- batches


def concatenated(parts: Sequence[tuple[GraphColumns, range | IntArray]]) -> GraphStore:
    """One store of some graphs of stores that have the same fields, in the order given, in the
    dtypes that a model sees; there is at least one part."""
    schema = parts[0][0].schema
    arrays = gathered(parts, {f"column.{field.name}": field.dtype for field in schema})
    return assembled(GraphStore, schema, arrays, name="requests")


def store_of(parts: Sequence[Part]) -> GraphStore:
    """One store of the graphs of the parts, in order."""
    stores = groupby(parts, lambda part: part.request.store)
    graphs = [(store, [graph for part in own for graph in part.graphs]) for store, own in stores]
    return concatenated([(store, np.array(numbers)) for store, numbers in graphs])


def hand_out(parts: Sequence[Part], store: GraphStore, batch: StaticBatch, out: Any) -> None:
    """Gives each request its part of what a model returned for a batch of a store of the parts."""
    leaves, form = dict(_rows(store, batch, out)), with_leaves(out, repeat(None))
    first = 0
    for request, graphs in parts:
        here = slice(first, first := first + len(graphs))
        rows = {k: v[here] if isinstance(v, Tensor | list) else v for k, v in leaves.items()}
        request.take(graphs, rows, form)


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
