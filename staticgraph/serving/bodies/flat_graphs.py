"""The graphs of requests as a few flat arrays, without a Python object per graph.

The problem: one ``Data`` per graph, its tensors and a store of them cost a third of a millisecond
per request, more than the model takes for a molecule in a full batch. The idea: a body is converted
directly to one array per field, and a batch is sorted and padded from all of them at once.

The invariant: arrays have the dtypes that a model sees (the loops that fill a batch are compiled
for each combination of dtypes), and edges keep the given order, numbered within their graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from staticgraph.schema import Field, Level, Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import (
    Array,
    local_positions,
    row_pointers,
    sort_by_destination,
)
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.indices import renumbered

TARGET = "y"


def fields_of(schema: Schema) -> list[Field]:
    """The fields that a request's graph must have in addition to its edges: all but its target."""
    return [item for item in schema if item.name != TARGET]


@dataclass(frozen=True, eq=False)
class FlatGraphs:
    """Homogeneous graphs in flat arrays.

    Attributes:
        num_nodes, num_edges: ``[n]`` int64.
        edge_index: ``[2, sum e]`` int64, numbered within each graph, edges in any order.
        columns: field -> ``[rows of its level, *shape]`` in the field's dtype; no target.
    """

    num_nodes: IntArray
    num_edges: IntArray
    edge_index: Array
    columns: Mapping[str, Array]

    @classmethod
    def zeros(cls, schema: Schema) -> FlatGraphs:
        """One graph of one node and no edge, zero in every field."""
        rows = {"node": 1, "edge": 0}
        columns = {
            item.name: np.zeros((rows.get(item.level, item.rows), *item.shape), item.dtype)
            for item in fields_of(schema)
        }
        counts = np.ones(1, np.int64), np.zeros(1, np.int64)
        return cls(*counts, np.zeros((2, 0), np.int64), columns)

    def __len__(self) -> int:
        return len(self.num_nodes)

    @cached_property
    def sizes(self) -> IntArray:
        """``[n, 2]`` int64: the numbers of nodes and edges of each graph."""
        return np.stack([self.num_nodes, self.num_edges], axis=1)

    @cached_property
    def offsets(self) -> dict[Level, IntArray]:
        """Level -> ``[n + 1]`` offsets of each graph's rows."""
        counts = {"node": self.num_nodes, "edge": self.num_edges}
        offsets = {level: np.concatenate([[0], np.cumsum(n)]) for level, n in counts.items()}
        return {**offsets, "graph": np.arange(len(self) + 1)}


class Span(NamedTuple):
    """Graphs ``first`` to ``last - 1`` of a store or of flat graphs."""

    graphs: GraphColumns | FlatGraphs
    first: int
    last: int


def together(spans: Sequence[Span], schema: Schema) -> FlatGraphs:
    """The graphs of all spans, which are of flat graphs, in one set of arrays and in order."""
    parts = [
        graphs if last - first == len(graphs) else _cut_out(graphs, first, last, schema)
        for graphs, first, last in spans
        if isinstance(graphs, FlatGraphs)
    ]
    return FlatGraphs(
        np.concatenate([graphs.num_nodes for graphs in parts]),
        np.concatenate([graphs.num_edges for graphs in parts]),
        np.concatenate([graphs.edge_index for graphs in parts], axis=1),
        {
            item.name: np.concatenate([graphs.columns[item.name] for graphs in parts])
            for item in fields_of(schema)
        },
    )


def _cut_out(graphs: FlatGraphs, first: int, last: int, schema: Schema) -> FlatGraphs:
    """Graphs ``first`` to ``last - 1``, as views of the same memory."""
    rows = {
        level: slice(int(offsets[first]), int(offsets[last]))
        for level, offsets in graphs.offsets.items()
    }
    columns = {}
    for item in fields_of(schema):
        per_graph = item.rows if item.level == "graph" else 1
        here = rows[item.level]
        columns[item.name] = graphs.columns[item.name][
            here.start * per_graph : here.stop * per_graph
        ]
    index = graphs.edge_index[:, rows["edge"]]
    return FlatGraphs(graphs.num_nodes[first:last], graphs.num_edges[first:last], index, columns)


def store_of(spans: Sequence[Span], schema: Schema) -> GraphStore:
    """A store of the graphs, sorted unless the schema keeps their order; targets are zero.

    The graphs are not checked here: they were checked when the arrays were made."""
    graphs = together(spans, schema)
    offsets = {level: graphs.offsets[level] for level in ("node", "edge", "graph")}
    (src, dst), bounds = graphs.edge_index, (offsets["node"], offsets["edge"])
    order = None if schema.keep_order else sort_by_destination(dst, *bounds)
    columns: Mapping[str, Array] = graphs.columns
    if order is not None:
        src, dst = src[order], dst[order]
        columns = renumbered(fields_of(schema), columns, offsets, len(graphs), "edge", order)
    if TARGET in schema:
        item = schema[TARGET]
        rows = int(offsets[item.level][-1]) * (item.rows if item.level == "graph" else 1)
        columns = {**columns, TARGET: np.zeros((rows, *item.shape), item.dtype)}
    none = np.empty(0, np.int64)
    row_ptr, transpose = row_pointers(src, dst, *bounds) if schema.has_pointers else (none, none)
    return GraphStore(
        schema=schema,
        node_offsets=offsets["node"],
        edge_offsets=offsets["edge"],
        edge_src=np.ascontiguousarray(src),
        edge_dst=np.ascontiguousarray(dst),
        row_ptr=row_ptr,
        transpose=transpose,
        edge_origin=none if order is None else local_positions(order, offsets["edge"]),
        columns={item.name: columns[item.name] for item in schema},
        name="requests",
    )
