"""Rows that a capacity reserves in addition to those for graphs, as the fields of the data require.

The problem: an index that counts edges needs an edge for its padding, positions need two padding
nodes at different positions, and where nodes have types, the total rows of all types must differ
from the rows of every type. The idea: code that creates or rounds a capacity, for a plan or for a
probe, adds the reserves here as its last step. The invariant: rows never decrease; where nodes have
types, the node and edge totals become the sums over their types. Pure numbers.
"""

from __future__ import annotations

from dataclasses import replace

from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity


def with_reserves(capacity: Capacity, schema: Schema | None) -> Capacity:
    """Adds the reserves that the schema requires to a capacity.

    An edge is reserved for padding where an index counts edges, and a second node where nodes have
    positions or other vectors. Where nodes have types, the totals are raised until no type has the
    same number of rows, so that a concatenation of all types is recognized by its size.
    """
    if schema is None:
        return capacity
    return with_pairs(_reserved(capacity, schema), schema)


def with_pairs(capacity: Capacity, schema: Schema | None) -> Capacity:
    """Makes the numbers of edges, and of rows of further kinds, even where they keep their order,
    for models that read pairs."""
    if schema is None or not schema.keep_order or schema.hetero:
        return capacity
    rows, used = {"": capacity.edges, **dict(capacity.extra)}, {capacity.nodes, capacity.graphs}
    for name, count in rows.items():
        rows[name] = _raised(count + count % 2, used, step=2)
    return replace(capacity, edges=rows.pop(""), extra=tuple(rows.items()))


def _reserved(capacity: Capacity, schema: Schema) -> Capacity:
    reserve = int(schema.counts_edges)
    nodes, edges, graphs = capacity.nodes, capacity.edges + reserve, capacity.graphs
    if not schema.hetero:
        apart = int(schema.has_vectors)
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
    used = {graphs}
    for name in (*of_edges, *of_nodes):
        if name not in last:
            rows[name] = _raised(rows[name], used)
    total_nodes = _with_total(rows, of_nodes, used)
    total_edges = _with_total(rows, of_edges, used)
    nodes = max(total_nodes, capacity.max_graph_nodes + 1)
    edges = total_edges
    while len({nodes, edges, graphs, *rows.values()}) < 3 + len(rows):
        if nodes in (graphs, *rows.values()):
            nodes += 1
        else:
            edges += 1
    return Capacity(nodes, edges, graphs, capacity.max_graph_nodes, tuple(rows.items()))


def of_equal_graphs(capacity: Capacity, nodes: int) -> Capacity:
    """A capacity for graphs of ``nodes`` nodes each, 2 or more, which has as many for each of its
    graphs, so that a model may write ``x.view(-1, nodes, F)``."""
    graphs = min(capacity.graphs, -(-capacity.nodes // nodes))
    edges = capacity.edges
    while edges in (graphs, nodes * graphs):
        edges += 1
    return replace(
        capacity, nodes=nodes * graphs, edges=edges, graphs=graphs, max_graph_nodes=nodes
    )


def in_form_of(capacity: Capacity, planned: Capacity) -> Capacity:
    """A capacity for graphs of one size, if a planned one is and the graphs have that size."""
    each = planned.nodes_each
    fits = each > 1 and capacity.max_graph_nodes <= each
    return of_equal_graphs(capacity, each) if fits else capacity


def _raised(rows: int, used: set[int], others: int = 0, step: int = 1) -> int:
    """The first number from ``rows`` upwards that is not taken and whose sum with ``others`` is not
    taken; both are then marked as taken. Both grow with each try, so the search terminates."""
    while rows in used or rows + others in used:
        rows += step
    used.update((rows, rows + others))
    return rows


def _with_total(rows: dict[str, int], types: list[str], used: set[int]) -> int:
    """Raises the rows of the last type until they and the total differ from everything that is
    taken; returns the total."""
    others = sum(rows[name] for name in types[:-1])
    if types:
        rows[types[-1]] = _raised(rows[types[-1]], used, others)
    return sum(rows[name] for name in types)
