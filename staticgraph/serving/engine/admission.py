"""Which requests a server accepts: those whose graphs fit a bucket, and for which there is room.

A request is refused before it enters the queue, so it takes no other request's place, and the
message says what would be accepted instead. Pure except for reading graphs: the caller holds the
lock, knows the length of the queue and counts the refused requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staticgraph.errors import BadGraph, GraphTooLarge, ServerBusy
from staticgraph.nn.context.present import Restored
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.prediction import new_graphs
from staticgraph.schema import Schema
from staticgraph.serving.engine.concatenation import StoreSpan, concatenated
from staticgraph.serving.engine.request_too_large import RequestTooLarge
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.how_many import how_many, how_many_of

# A retry sooner than this would find the same queue.
SOONEST_RETRY_S = 0.001


class Admission:
    """Decides whether a server accepts a request.

    Args:
        schema: the fields of a graph.
        plan: the buckets.
        unfit: maps sizes ``[n, C]`` to the positions of the graphs that fit no bucket.
        max_queue: the most graphs that may wait.
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
        """Refuses a request with more graphs than the queue holds.

        Raises:
            RequestTooLarge: the request has more than ``max_queue`` graphs.
        """
        if graphs > self._max_queue:
            raise RequestTooLarge(
                f"{how_many(graphs, 'graph')} in one request, and the queue holds "
                f"{self._max_queue}: ask for fewer at a time, or raise max_queue"
            )

    def over(self, graphs: int, waiting: int) -> int:
        """By how many graphs a request would exceed the queue; 0 if there is room."""
        return max(0, waiting + graphs - self._max_queue)

    def busy(self, graphs: int, waiting: int, retry_s: float) -> ServerBusy:
        """The error for a request for which there is no room, with the seconds until a retry, at
        least ``SOONEST_RETRY_S``."""
        retry = max(SOONEST_RETRY_S, retry_s)
        return ServerBusy(
            f"{how_many(waiting, 'graph')} {'waits' if waiting == 1 else 'wait'}, and with "
            f"{graphs:,} more they pass max_queue={self._max_queue}: ask again in {retry:.3f} s",
            retry,
        )

    def columns(self, graphs: Any) -> GraphColumns:
        """The graphs as columns of the plan's fields; each graph fits a bucket.

        Raises:
            BadGraph: a graph lacks a field, or a store's fields differ from the plan's.
            GraphTooLarge: a graph fits no bucket.
        """
        if isinstance(graphs, GraphStore):
            self._check_fields(graphs)
            self._check_fit(graphs)
            return concatenated([StoreSpan(graphs, 0, len(graphs))])  # the caller may change it
        with Restored(nothing=True):  # a store is built with PyG's original functions
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
        """The error for one graph, given its number in the request and its sizes ``[C]``."""
        size = dict(zip(self._schema.components, sizes.tolist(), strict=True))
        has = " and ".join(how_many_of(n, what) for what, n in size.items())
        return GraphTooLarge(
            f"graph {graph} has {has} and fits no bucket; they are "
            f"{', '.join(map(str, self._capacities))}, for single graphs of at most "
            f"{how_many(max(c.max_graph_nodes for c in self._capacities), 'node')}: make a plan "
            "whose data has graphs as large, or leave it out"
        )
