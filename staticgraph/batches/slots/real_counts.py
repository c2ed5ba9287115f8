"""How many rows of a batch are real, known on the host before any is copied.

The counts decide whether graphs fit a bucket at all, so they are computed first: a batch that is
too large is refused by its counts, and the slot is left as it was.
"""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.errors import GraphTooLarge
from staticgraph.jit import loop
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.how_many import how_many, how_many_of


class RealCounts(NamedTuple):
    """The contents of a batch, as host numbers."""

    nodes: int
    edges: int
    graphs: int
    largest: int
    """Nodes of the largest graph."""
    extra: tuple[tuple[str, int], ...] = ()
    """Rows of each axis of the data's own."""

    def __str__(self) -> str:
        counts = (("nodes", self.nodes), ("edges", self.edges), ("graphs", self.graphs))
        return ", ".join(f"{rows:,} {name}" for name, rows in (*counts, *self.extra))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Nodes, edges, graphs, nodes of the largest graph, and rows of each further component."""
        return (*self[:4], *(rows for _, rows in self.extra))

    def of(self, level: str) -> int:
        """Returns how many rows of a level are real."""
        counts = {"node": self.nodes, "edge": self.edges, "graph": self.graphs}
        return counts[level] if level in counts else dict(self.extra)[level]

    def fit(self, capacity: Capacity) -> bool:
        """Whether a bucket has room for them."""
        return (
            self.nodes <= capacity.node_limit
            and self.edges <= capacity.edge_limit
            and self.graphs <= capacity.graph_limit
            and self.largest <= capacity.max_graph_nodes
            and all(rows < dict(capacity.extra)[name] for name, rows in self.extra)
        )


def real_counts(
    store: GraphColumns, ids: IntArray, capacity: Capacity, names: IntArray | None = None
) -> RealCounts:
    """Returns the counts of these graphs together; messages use ``names`` as their ids, if given.

    Raises:
        GraphTooLarge: the counts exceed the capacity.
    """
    nodes, edges, largest = _totals(ids, store.node_offsets, store.edge_offsets)
    real = RealCounts(nodes, edges, len(ids), largest)
    if real.fit(capacity):
        return real._replace(extra=_extra(store, ids, capacity)) if store.offsets else real
    sizes = store.sizes[ids]
    worst = int(sizes[:, 0].argmax())
    raise GraphTooLarge(
        f"{how_many(len(ids), 'graph')} of {how_many(nodes, 'node')} and {how_many(edges, 'edge')} "
        f"together, the largest (graph {(ids if names is None else names)[worst]}) "
        f"{how_many(largest, 'node')}; the bucket takes {how_many(capacity.node_limit, 'node')}, "
        f"{how_many(capacity.edge_limit, 'edge')}, {how_many(capacity.graph_limit, 'graph')} and "
        f"single graphs of {how_many(capacity.max_graph_nodes, 'node')}: put fewer graphs "
        "together, or use a larger bucket"
    )


def _extra(store: GraphColumns, ids: IntArray, capacity: Capacity) -> tuple[tuple[str, int], ...]:
    """Returns the rows of each axis; refuses counts that exceed the bucket."""
    extra = tuple(
        (name, int((offsets[ids + 1] - offsets[ids]).sum()))
        for name, offsets in store.offsets.items()
    )
    for (name, rows), limit in zip(extra, capacity.extra_limits, strict=True):
        if rows > limit:
            raise GraphTooLarge(
                f"{how_many(len(ids), 'graph')} of {how_many_of(rows, name)} together; the bucket "
                f"takes {limit:,}: put fewer graphs together, or use a larger bucket"
            )
    return extra


@loop
def _totals(ids: IntArray, node_offsets: IntArray, edge_offsets: IntArray) -> tuple[int, int, int]:
    nodes, edges, largest = 0, 0, 0
    for g in ids:
        n = node_offsets[g + 1] - node_offsets[g]
        nodes += n
        edges += edge_offsets[g + 1] - edge_offsets[g]
        largest = max(largest, n)
    return int(nodes), int(edges), int(largest)
