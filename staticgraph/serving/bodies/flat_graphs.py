"""The graphs of requests as a few flat arrays, without a Python object per graph.

The problem: one ``Data`` per graph, its tensors and a store of them cost a third of a millisecond
per request, more than the model takes for a molecule in a full batch. The idea: a body is converted
directly to one array per field, requests are spans of these arrays, and a batch is sorted and
padded from all of them at once.

The invariant: arrays have the dtypes that a model sees (the loops that fill a batch are compiled
for each combination of dtypes), and edges keep the given order, numbered within their graph.

Without torch, which a process that reads bodies does not import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
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
        one = np.ones(1, np.int64)
        return cls(one, 0 * one, np.zeros((2, 0), np.int64), columns)

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
        found = {level: np.concatenate([[0], np.cumsum(n)]) for level, n in counts.items()}
        return {**found, "graph": np.arange(len(self) + 1)}

    def rows(self, level: Level, first: int, last: int) -> slice:
        """The slice of the rows of graphs ``first`` to ``last - 1``."""
        offsets = self.offsets[level]
        return slice(int(offsets[first]), int(offsets[last]))


class FlatSpan(NamedTuple):
    """Graphs ``first`` to ``last - 1``."""

    graphs: FlatGraphs
    first: int
    last: int


def whole(graphs: FlatGraphs) -> FlatSpan:
    """The span of all graphs."""
    return FlatSpan(graphs, 0, len(graphs))


def together(spans: Sequence[FlatSpan], schema: Schema) -> FlatGraphs:
    """The graphs of all spans in one set of arrays, in the order given."""
    if len(spans) == 1 and _is_whole(spans[0]):
        return spans[0].graphs
    all_of = [span.graphs if _is_whole(span) else cut_out(span, schema) for span in spans]
    return FlatGraphs(
        np.concatenate([graphs.num_nodes for graphs in all_of]),
        np.concatenate([graphs.num_edges for graphs in all_of]),
        np.concatenate([graphs.edge_index for graphs in all_of], axis=1),
        {
            item.name: np.concatenate([graphs.columns[item.name] for graphs in all_of])
            for item in fields_of(schema)
        },
    )


def _is_whole(span: FlatSpan) -> bool:
    return span.last - span.first == len(span.graphs)


def cut_out(span: FlatSpan, schema: Schema) -> FlatGraphs:
    """The graphs of a span, as views of the same memory."""
    graphs, first, last = span
    rows = {
        "node": graphs.rows("node", first, last),
        "edge": graphs.rows("edge", first, last),
    }
    columns = {
        item.name: graphs.columns[item.name][
            rows.get(item.level, slice(first * item.rows, last * item.rows))
        ]
        for item in fields_of(schema)
    }
    index = graphs.edge_index[:, rows["edge"]]
    return FlatGraphs(graphs.num_nodes[first:last], graphs.num_edges[first:last], index, columns)


def store_of(spans: Sequence[FlatSpan], schema: Schema) -> GraphStore:
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


def split(graphs: FlatGraphs, counts: Sequence[int]) -> list[FlatSpan]:
    """Consecutive spans with ``counts`` graphs each."""
    bounds = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).tolist()
    return [FlatSpan(graphs, first, last) for first, last in pairwise(bounds)]
