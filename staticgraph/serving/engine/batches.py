"""Builds and runs a server's batches: the graphs of several requests in one bucket.

Every batch of a bucket is filled by the same layout, in the dtypes that a model sees even if a
store keeps smaller ones, so the loops that fill it are compiled once, before the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from staticgraph.batches.batch.static_batch import filled
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.runner.prediction import Predictor
from staticgraph.schema import Level, Schema
from staticgraph.serving.bodies.flat_graphs import FlatGraphs, Span, store_of
from staticgraph.serving.engine.request import Output, Piece, Request, cut, output_of
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore


class ServedBatches:
    """Runs the batches of one server.

    Args:
        runner: runs the batches.
        schema: the fields of a graph.
    """

    def __init__(self, runner: Predictor, schema: Schema) -> None:
        self._runner = runner
        self._schema = schema
        self._layouts = [
            SlotLayout(bucket, capacity, schema, runner.pointers)
            for bucket, capacity in enumerate(runner.plan.capacities)
        ]

    def warm(self) -> None:
        """Compiles the loops that concatenate graphs and fill a batch."""
        store = concatenated([Span(GraphStore.zeros(self._schema), 0, 1)])
        filled(self._layouts[0], store, ())
        if not (self._schema.axes or self._schema.two_sided):
            store_of([Span(FlatGraphs.zeros(self._schema), 0, 1)], self._schema)

    def run(
        self, pieces: list[Piece], bucket: int, count: Callable[[tuple[int, int, int]], None]
    ) -> list[Request]:
        """Runs the graphs of several requests in a bucket, and gives each request its outputs.

        Args:
            pieces: the graphs.
            bucket: the bucket.
            count: called before the batch runs with its numbers of real nodes, edges and graphs.

        Returns:
            The requests that have all their outputs. Raises whatever the model raises.
        """
        store = self._store(spans_of(pieces))
        batch = filled(self._layouts[bucket], store, range(len(store)))
        real = batch.real_counts
        count((real.nodes, real.edges, real.graphs))
        batch = batch.to(self._runner.device)
        out: Output = output_of(store, batch, self._runner.predict_batch(batch))
        return hand_out(pieces, out)

    def _store(self, spans: list[Span]) -> GraphStore:
        """One store of the graphs of all spans, whether of stores or of flat graphs."""
        if all(isinstance(span.graphs, FlatGraphs) for span in spans):
            return store_of(spans, self._schema)
        return concatenated(
            [
                Span(store_of([span], self._schema), 0, span.last - span.first)
                if isinstance(span.graphs, FlatGraphs)
                else span
                for span in spans
            ]
        )


def spans_of(pieces: list[Piece]) -> list[Span]:
    """Spans of graphs that are consecutive in the same arrays, regardless of their requests."""
    spans: list[Span] = []
    for request, graph in pieces:
        place = request.first + graph
        if spans and spans[-1].graphs is request.graphs and spans[-1].last == place:
            spans[-1] = spans[-1]._replace(last=place + 1)
        else:
            spans.append(Span(request.graphs, place, place + 1))
    return spans


def hand_out(pieces: list[Piece], out: Output) -> list[Request]:
    """Gives each request its part of a batch's output; returns the requests that are complete."""
    complete, place = [], 0
    while place < len(pieces):
        (request, graph), end = pieces[place], place + 1
        while end < len(pieces) and pieces[end] == (request, graph + end - place):
            end += 1
        if request.take(graph, end - place, cut(out, place, end)):
            complete.append(request)
        place = end
    return complete


def concatenated(spans: Sequence[Span]) -> GraphStore:
    """One store of the graphs of all spans, in the order given, in the dtypes that a model sees.

    Args:
        spans: at least one, of stores that have the same fields.
    """
    stores = [span.graphs for span in spans if isinstance(span.graphs, GraphColumns)]
    for store, span in zip(stores, spans, strict=True):
        store.verify(np.arange(span.first, span.last))
    schema = stores[0].schema

    def rows(level: Level) -> list[slice]:
        """Each span's rows among those of its store."""
        return [
            slice(*map(int, store.offsets_of(level)[[span.first, span.last]]))
            for store, span in zip(stores, spans, strict=True)
        ]

    def flat(level: Level, part: Callable[[GraphColumns], Array], dtype: str = "int64") -> Array:
        """The rows of one array in all spans."""
        parts = [part(store)[here] for store, here in zip(stores, rows(level), strict=True)]
        return np.concatenate(parts).astype(dtype, copy=False)

    def counts(level: Level) -> list[IntArray]:
        """The number of rows of each graph, for each span."""
        return [
            np.diff(store.offsets_of(level)[span.first : span.last + 1]).astype(np.int64)
            for store, span in zip(stores, spans, strict=True)
        ]

    def offsets(level: Level) -> IntArray:
        """``[graphs + 1]`` offsets of the rows of each graph."""
        return np.concatenate([[0], np.cumsum(np.concatenate(counts(level)))])

    def origins(level: Level, origin_of: Callable[[GraphColumns], Array | None]) -> Array:
        """The positions of rows before sorting; empty if no store sorted any."""
        known = [origin_of(store) for store in stores]
        if all(origin is None or not len(origin) for origin in known):
            return np.empty(0, np.int64)
        return np.concatenate(
            [
                origin[here] if origin is not None and len(origin) else _in_order(each)
                for origin, here, each in zip(known, rows(level), counts(level), strict=True)
            ]
        ).astype(np.int64)

    def field(name: str, level: Level, per_graph: int, dtype: str) -> Array:
        """The rows of one field in all spans."""
        parts = [
            store.columns[name][here.start * per_graph : here.stop * per_graph]
            for store, here in zip(stores, rows(level), strict=True)
        ]
        return np.concatenate(parts).astype(dtype, copy=False)

    edge_offsets = offsets("edge")
    return GraphStore(
        schema=schema,
        node_offsets=offsets("node"),
        edge_offsets=edge_offsets,
        edge_src=flat("edge", lambda store: store.edge_src),
        edge_dst=flat("edge", lambda store: store.edge_dst),
        row_ptr=_row_pointers(stores, rows("node"), rows("edge"))
        if schema.has_pointers
        else np.empty(0, np.int64),
        transpose=flat("edge", lambda store: store.transpose),
        edge_origin=origins("edge", lambda store: store.edge_origin),
        columns={
            item.name: field(
                item.name, item.level, item.rows if item.level == "graph" else 1, item.dtype
            )
            for item in schema
        },
        name="requests",
        offsets={axis.name: offsets(axis.name) for axis in schema.axes},
        origins={
            axis.name: positions
            for axis in schema.edge_axes
            if len(positions := origins(axis.name, lambda s, a=axis.name: s.origins.get(a)))
        },
    )


def _in_order(counts: IntArray) -> IntArray:
    """The position of each row in its graph."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _row_pointers(
    stores: Sequence[GraphColumns], nodes: Sequence[slice], edges: Sequence[slice]
) -> IntArray:
    """``[sum n + 1]`` offsets of the edges of each node."""
    pieces, before = [], 0
    for store, node, edge in zip(stores, nodes, edges, strict=True):
        pieces.append(store.row_ptr[node].astype(np.int64) - edge.start + before)
        before += edge.stop - edge.start
    return np.concatenate([*pieces, [before]])
