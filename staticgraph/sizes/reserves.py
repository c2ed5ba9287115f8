"""Rows that a capacity keeps besides those for graphs, as the fields of the data ask for them.

The problem: an index that counts edges needs an edge for its padding, positions need two padding
nodes apart, and where nodes have types, the rows of all types together must be no type's own. The
idea: whoever makes up or rounds a capacity, for a plan or for a probe, dresses it here last. The
invariant: rows never fall; where
nodes have types, all nodes and all edges become the sums that their types make. Pure numbers.
"""

from __future__ import annotations

from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity


def with_reserves(capacity: Capacity, schema: Schema | None) -> Capacity:
    """The capacity with an edge kept for padding where an index counts edges, two nodes where they
    have positions, and with totals that no type has where nodes have types, so that a concatenation
    of all is known by its size."""
    if schema is None:
        return capacity
    reserve = int(schema.counts_edges)
    nodes, edges, graphs = capacity.nodes, capacity.edges + reserve, capacity.graphs
    if not schema.hetero:
        apart = int(schema.positions_of("node") is not None)
        if not reserve + apart:
            return capacity
        return Capacity.distinct(
            nodes + apart,
            edges,
            graphs,
            capacity.max_graph_nodes,
            capacity.extra,
            reserve,
            1 + apart,
        )
    rows = dict(capacity.extra)
    of_nodes = [axis.name for axis in schema.node_axes]
    of_edges = [axis.name for axis in schema.edge_axes]
    while True:
        total_nodes = sum(rows[name] for name in of_nodes)
        total_edges = sum(rows[name] for name in of_edges)
        totals = [total for total, of in ((total_nodes, of_nodes), (total_edges, of_edges))]
        numbers = [
            graphs,
            *rows.values(),
            *(t for t, of in zip(totals, (of_nodes, of_edges), strict=True) if len(of) > 1),
        ]
        if len(set(numbers)) == len(numbers):
            break
        seen: set[int] = {graphs}
        for name in (*of_edges, *of_nodes):
            while rows[name] in seen:
                rows[name] += 1
            seen.add(rows[name])
        if len({graphs, *rows.values()}) == len(rows) + 1:  # only a total coincides
            # More edges part the totals from each other, but never the nodes from another type.
            last = (of_edges or of_nodes)[-1]
            others = {graphs, *(count for name, count in rows.items() if name != last)}
            rows[of_nodes[-1] if len(of_nodes) > 1 and total_nodes in others else last] += 1
    nodes = max(total_nodes, capacity.max_graph_nodes + 1)
    edges = total_edges
    while len({nodes, edges, graphs, *rows.values()}) < 3 + len(rows):
        if nodes in (graphs, *rows.values()):
            nodes += 1
        else:
            edges += 1
    return Capacity(nodes, edges, graphs, capacity.max_graph_nodes, tuple(rows.items()))
