"""Which requests a server takes: those whose graphs it can run, and for which there is room.

What is refused is refused before it waits, so that it costs nobody else a place, and the message
says what would be taken instead. Pure but for reading graphs: the caller holds the lock, knows how
many wait and counts what was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staticgraph.errors import BadGraph, GraphTooLarge, ServerBusy
from staticgraph.nn.context.present import Restored
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.execution.prediction import new_graphs
from staticgraph.schema import Schema
from staticgraph.serving.engine.concatenation import StoreSpan, concatenated
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.how_many import how_many, how_many_of

# A retry sooner than this finds the same queue.
SOONEST_RETRY_S = 0.001


class Admission:
    """What a request must be.

    Args:
        schema: the fields of a graph.
        plan: the buckets.
        unfit: positions of those graphs, by their sizes ``[n, C]``, that fit no bucket.
        max_queue: graphs that may wait.
    """

    def __init__(
        self,
        schema: Schema,
        plan: BucketPlan,
        unfit: Callable[[IntArray], IntArray],
        max_queue: int,
    ) -> None:
        self._schema = schema
        self._plan, self._capacities = plan, plan.capacities
        self._unfit = unfit
        self._max_queue = max_queue

    def check_size(self, graphs: int) -> None:
        """Refuses more graphs than could ever wait.

        Raises:
            ValueError: that many were asked for at once.
        """
        if graphs > self._max_queue:
            raise ValueError(
                f"{how_many(graphs, 'graph')} in one request, and the queue holds "
                f"{self._max_queue}: ask for fewer at a time, or raise max_queue"
            )

    def over(self, graphs: int, waiting: int) -> int:
        """How many graphs too many there would be with these; 0 where there is room."""
        return max(0, waiting + graphs - self._max_queue)

    def busy(self, graphs: int, waiting: int, retry_s: float) -> ServerBusy:
        """The error of a request for which there is no room, to be asked again in so many seconds,
        but not at once."""
        retry = max(SOONEST_RETRY_S, retry_s)
        return ServerBusy(
            f"{how_many(waiting, 'graph')} {'waits' if waiting == 1 else 'wait'}, and with "
            f"{graphs:,} more they pass max_queue={self._max_queue}: ask again in {retry:.3f} s",
            retry,
        )

    def columns(self, graphs: Any) -> GraphColumns:
        """The graphs as columns of the plan's fields, each of which fits a bucket.

        Raises:
            BadGraph: one lacks a field, or a store has others than the plan.
            GraphTooLarge: one fits no bucket.
        """
        if isinstance(graphs, GraphStore):
            self._check_fields(graphs)
            self._check_fit(graphs)
            return concatenated([StoreSpan(graphs, 0, len(graphs))])  # its owner may change it
        with Restored(nothing=True):  # a store is made by PyG's own functions
            store = new_graphs(graphs, self._plan, self._schema)
        self._check_fit(store)
        return store

    def _check_fields(self, store: GraphStore) -> None:
        if {f.layout for f in store.schema} == {f.layout for f in self._schema}:
            return
        wanted, found = (
            {f"{f.name} {f.describe()}" for f in schema} for schema in (self._schema, store.schema)
        )
        lacks, has = ", ".join(sorted(wanted - found)), ", ".join(sorted(found - wanted))
        raise BadGraph(
            f"{store.name} has {has or 'nothing'} where the plan has {lacks or 'nothing'}: make "
            "the store as that of the training data was made"
            if lacks or has
            else f"{store.name} has indices that count other rows than the plan's"
        )

    def _check_fit(self, store: GraphStore) -> None:
        unfit = self._unfit(store.sizes)
        if len(unfit):
            raise self.too_large(int(unfit[0]), store.sizes[unfit[0]])

    def too_large(self, graph: int, sizes: IntArray) -> GraphTooLarge:
        """The error of one graph, by its number in the request and its sizes ``[C]``."""
        size = dict(zip(self._schema.components, sizes.tolist(), strict=True))
        has = " and ".join(how_many_of(n, what) for what, n in size.items())
        return GraphTooLarge(
            f"graph {graph} has {has} and fits no bucket; they are "
            f"{', '.join(map(str, self._capacities))}, for single graphs of at most "
            f"{how_many(max(c.max_graph_nodes for c in self._capacities), 'node')}: make a plan "
            "whose data has graphs as large, or leave it out"
        )
