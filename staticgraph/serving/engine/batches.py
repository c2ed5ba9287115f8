"""Builds and runs a server's batches: the graphs of several requests in one bucket.

Every batch of a bucket is filled by the same layout, in the dtypes that a model sees even if a
store keeps smaller ones, so the loops that fill it are compiled once, before the first request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from staticgraph.batches.batch.static_batch import StaticBatch, filled
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.runner.prediction import Predictor
from staticgraph.schema import Schema
from staticgraph.serving.bodies.flat_graphs import FlatGraphs, store_of
from staticgraph.serving.engine.request import Piece, Request, cut, output_of
from staticgraph.store.graph_columns import GraphColumns, assembled
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.joined_parts import gathered


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
        store = concatenated([(GraphStore.zeros(self._schema), range(1))])
        filled(self._layouts[0], store, ())
        if not (self._schema.axes or self._schema.two_sided):
            store_of([FlatGraphs.zeros(self._schema)], self._schema)

    def fill(self, pieces: list[Piece], bucket: int) -> tuple[GraphStore, StaticBatch]:
        """The graphs of several requests as a store, and as a batch of a bucket on the host."""
        store = self._store(pieces)
        return store, filled(self._layouts[bucket], store, range(len(store)))

    def run(self, pieces: list[Piece], store: GraphStore, batch: StaticBatch) -> list[Request]:
        """Runs what :meth:`fill` made, and gives each request its outputs.

        Returns:
            The requests that have all their outputs. Raises whatever the model raises.
        """
        batch = batch.to(self._runner.device)
        out = output_of(store, batch, self._runner.predict_batch(batch))
        return hand_out(pieces, out)

    def _store(self, pieces: list[Piece]) -> GraphStore:
        """One store of the graphs, whether of stores or of flat graphs."""
        spans = [
            (request.graphs, first, first + count) for request, first, count in spans_of(pieces)
        ]
        flat = [
            graphs.part(first, last, self._schema)
            for graphs, first, last in spans
            if isinstance(graphs, FlatGraphs)
        ]
        if len(flat) == len(spans):
            return store_of(flat, self._schema)
        stores = [
            store_of([graphs], self._schema) if isinstance(graphs, FlatGraphs) else graphs
            for graphs, *_ in spans
        ]
        ranges = [range(first, last) for _, first, last in spans]
        return concatenated(list(zip(stores, ranges, strict=True)))


def spans_of(pieces: list[Piece]) -> list[tuple[Request, int, int]]:
    """The pieces as requests, each with the first of its graphs and their number."""
    spans: list[tuple[Request, int, int]] = []
    for request, graph in pieces:
        if spans and spans[-1][0] is request and sum(spans[-1][1:]) == graph:
            spans[-1] = (request, spans[-1][1], spans[-1][2] + 1)
        else:
            spans.append((request, graph, 1))
    return spans


def hand_out(pieces: list[Piece], out: Any) -> list[Request]:
    """Gives each request its part of a batch's output; returns the requests that are complete."""
    spans = spans_of(pieces)
    ends = accumulate(count for *_, count in spans)
    parts = [cut(out, end - span[2], end) for span, end in zip(spans, ends, strict=True)]
    return [
        request
        for (request, graph, count), part in zip(spans, parts, strict=True)
        if request.take(graph, count, part)
    ]


def concatenated(parts: Sequence[tuple[GraphColumns, range]]) -> GraphStore:
    """One store of the graphs of all parts, in the order given, in the dtypes that a model sees.

    Args:
        parts: at least one, of stores that have the same fields, and the graphs of each.
    """
    for store, graphs in parts:
        store.verify(np.asarray(graphs))
    schema = parts[0][0].schema
    dtypes = {f"column.{field.name}": field.dtype for field in schema}
    arrays = gathered(parts, dtypes)
    return assembled(GraphStore, schema, arrays, name="requests")
