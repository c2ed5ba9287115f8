"""Rows that a capacity keeps in addition to those for graphs, as the fields of the data require.

The problem: an index that counts edges needs an edge for its padding, positions need two padding
nodes apart, and where nodes have types, the rows of all types together must be no type's own. The
idea: whoever makes up or rounds a capacity, for a plan or for a probe, dresses it here last. The
invariant: rows never fall; where nodes have types, all nodes and all edges become the sums that
their types make. Pure numbers.
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
    last = {of[-1] for of in (of_nodes, of_edges) if of}
    taken = {graphs}
    for name in (*of_edges, *of_nodes):
        if name not in last:
            rows[name] = _raised(rows[name], taken)
    total_nodes = _with_total(rows, of_nodes, taken)
    total_edges = _with_total(rows, of_edges, taken)
    nodes = max(total_nodes, capacity.max_graph_nodes + 1)
    edges = total_edges
    while len({nodes, edges, graphs, *rows.values()}) < 3 + len(rows):
        if nodes in (graphs, *rows.values()):
            nodes += 1
        else:
            edges += 1
    return Capacity(nodes, edges, graphs, capacity.max_graph_nodes, tuple(rows.items()))


def _raised(rows: int, taken: set[int], others: int = 0) -> int:
    """The first number from ``rows`` on that is not taken, nor, where ``others`` are added to it,
    their sum; both are taken from now on. Both rise by one at every try, so one is found."""
    while rows in taken or rows + others in taken:
        rows += 1
    taken.update((rows, rows + others))
    return rows


def _with_total(rows: dict[str, int], types: list[str], taken: set[int]) -> int:
    """Raises the rows of the last of some types until they and the total are told from all that is
    taken; gives the total."""
    others = sum(rows[name] for name in types[:-1])
    if types:
        rows[types[-1]] = _raised(rows[types[-1]], taken, others)
    return sum(rows[name] for name in types)
