"""Builds and runs a server's batches: the graphs of several requests in one bucket.

Every batch of a bucket is filled by the same layout, in the dtypes that a model sees even if a
store keeps smaller ones, so the loops that fill it are compiled once, before the first request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from staticgraph.batches.batch.static_batch import StaticBatch, filled
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.runner.prediction import Predictor
from staticgraph.schema import Schema
from staticgraph.serving.bodies.flat_graphs import FlatGraphs, Span, store_of
from staticgraph.serving.engine.request import Piece, Request, cut, output_of
from staticgraph.store.graph_columns import GraphColumns, assembled
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.parts import gathered


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

    def fill(self, pieces: list[Piece], bucket: int) -> tuple[GraphStore, StaticBatch]:
        """The graphs of several requests as a store, and as a batch of a bucket on the host."""
        store = self._store(spans_of(pieces))
        return store, filled(self._layouts[bucket], store, range(len(store)))

    def run(self, pieces: list[Piece], store: GraphStore, batch: StaticBatch) -> list[Request]:
        """Runs what :meth:`fill` made, and gives each request its outputs.

        Returns:
            The requests that have all their outputs. Raises whatever the model raises.
        """
        batch = batch.to(self._runner.device)
        out = output_of(store, batch, self._runner.predict_batch(batch))
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


def hand_out(pieces: list[Piece], out: Any) -> list[Request]:
    """Gives each request its part of a batch's output; returns the requests that are complete."""
    parts, place = [], 0
    while place < len(pieces):
        (request, graph), end = pieces[place], place + 1
        while end < len(pieces) and pieces[end] == (request, graph + end - place):
            end += 1
        parts.append((request, graph, end - place, cut(out, place, end)))
        place = end
    return [request for request, *part in parts if request.take(*part)]


def concatenated(spans: Sequence[Span]) -> GraphStore:
    """One store of the graphs of all spans, in the order given, in the dtypes that a model sees.

    Args:
        spans: at least one, of stores that have the same fields.
    """
    stores = [span.graphs for span in spans if isinstance(span.graphs, GraphColumns)]
    parts = [(store, range(*span[1:])) for store, span in zip(stores, spans, strict=True)]
    for store, graphs in parts:
        store.verify(np.asarray(graphs))
    schema = stores[0].schema
    dtypes = {f"column.{field.name}": field.dtype for field in schema}
    arrays = gathered(parts, lambda name: dtypes.get(name, "int64"), without=("object",))
    return assembled(GraphStore, schema, arrays, name="requests")
