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

import numpy as np

from staticgraph.schema import Field, Level, Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import (
    Array,
    local_positions,
    row_pointers,
    sort_by_destination,
)
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

    def part(self, first: int, last: int, schema: Schema) -> FlatGraphs:
        """Graphs ``first`` to ``last - 1``, as views of the same memory."""
        if last - first == len(self):
            return self
        columns = {}
        for item in fields_of(schema):
            begin, end = self.offsets[item.level][[first, last]]
            rows = item.rows if item.level == "graph" else 1
            columns[item.name] = self.columns[item.name][begin * rows : end * rows]
        begin, end = self.offsets["edge"][[first, last]]
        graphs = slice(first, last)
        return FlatGraphs(
            self.num_nodes[graphs], self.num_edges[graphs], self.edge_index[:, begin:end], columns
        )


def joined(parts: Sequence[FlatGraphs], schema: Schema) -> FlatGraphs:
    """The graphs of all parts in one set of arrays, in order."""
    return FlatGraphs(
        np.concatenate([part.num_nodes for part in parts]),
        np.concatenate([part.num_edges for part in parts]),
        np.concatenate([part.edge_index for part in parts], axis=1),
        {
            item.name: np.concatenate([part.columns[item.name] for part in parts])
            for item in fields_of(schema)
        },
    )


def store_of(parts: Sequence[FlatGraphs], schema: Schema) -> GraphStore:
    """A store of the graphs of all parts, sorted unless the schema keeps their order; targets are
    zero.

    The graphs are not checked here: they were checked when the arrays were made."""
    graphs = joined(parts, schema)
    offsets = graphs.offsets
    (src, dst), bounds = graphs.edge_index, (offsets["node"], offsets["edge"])
    order = None if schema.keep_order else sort_by_destination(dst, *bounds)
    columns: Mapping[str, Array] = graphs.columns
    if order is not None:
        src, dst = src[order], dst[order]
        columns = renumbered(fields_of(schema), columns, offsets, "edge", order)
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
