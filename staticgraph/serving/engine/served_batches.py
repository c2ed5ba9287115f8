"""Builds and runs a server's batches: the graphs of several requests in one bucket.

Every batch of a bucket is filled by the same layout, in dtypes that do not depend on the requests,
so the loops that fill it are compiled once, before the first request.
"""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.batches.batch.static_batch import StaticBatch, filled
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.runner.prediction import Predictor
from staticgraph.schema import Schema
from staticgraph.serving.bodies.flat_graphs import FlatGraphs, store_of, whole
from staticgraph.serving.engine.batch_spans import spans_of
from staticgraph.serving.engine.concatenation import StoreSpan, concatenated_any
from staticgraph.serving.engine.outputs import Output, output_of
from staticgraph.serving.engine.request import Piece
from staticgraph.store.graph_store import GraphStore


class ServedBatch(NamedTuple):
    """Graphs of several requests, in the order in which their outputs are split.

    Attributes:
        store: the graphs.
        batch: the same graphs in a bucket's shapes, on the CPU.
    """

    store: GraphStore
    batch: StaticBatch

    @property
    def real(self) -> tuple[int, int, int]:
        """The numbers of real nodes, edges and graphs."""
        counts = self.batch.real_counts
        return counts.nodes, counts.edges, counts.graphs


class ServedBatches:
    """Builds and runs the batches of one server.

    Args:
        runner: runs the batches.
        schema: the fields of a graph.
    """

    def __init__(self, runner: Predictor, schema: Schema) -> None:
        self._runner = runner
        self._schema = schema
        pointers = runner.pointers
        self._layouts = [
            SlotLayout(bucket, capacity, schema, pointers)
            for bucket, capacity in enumerate(runner.plan.capacities)
        ]

    def warm(self) -> None:
        """Compiles the loops that concatenate graphs and fill a batch."""
        store = concatenated_any([StoreSpan(GraphStore.zeros(self._schema), 0, 1)], self._schema)
        filled(self._layouts[0], store, ())
        if not (self._schema.axes or self._schema.two_sided):
            store_of([whole(FlatGraphs.zeros(self._schema))], self._schema)

    def of(self, pieces: list[Piece], bucket: int) -> ServedBatch:
        """Builds a batch of graphs of several requests in a bucket.

        Raises:
            GraphTooLarge: the graphs do not fit the bucket.
        """
        store = concatenated_any(spans_of(pieces), self._schema)
        return ServedBatch(store, filled(self._layouts[bucket], store, range(len(store))))

    def run(self, served: ServedBatch) -> Output:
        """The graphs' outputs, in order, on the CPU; raises whatever the model raises."""
        batch = served.batch.to(self._runner.device)
        return output_of(served.store, batch, self._runner.predict_batch(batch))
