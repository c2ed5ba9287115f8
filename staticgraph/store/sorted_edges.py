"""Sorts the edges of all graphs by destination, and everything that depends on their order.

Sums over neighbours need no atomics if the incoming edges of a node are adjacent, so a store sorts
edges once, graph by graph. Edge fields are permuted with them, index fields that refer to edges are
renumbered, and the original position of each edge is kept, so that a graph can be read back as it
went in, and a whole store be put back in order for a model that reads edges by their position
(:func:`first_order`). Invariant: for homogeneous graphs, ``edge_index`` becomes ``src`` and ``dst``
with pointers; for heterogeneous data, or if edges join two levels, each ``edge_index`` stays a
column and these are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from staticgraph.errors import BadGraph
from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import (
    Array,
    check_endpoints,
    compact,
    local_positions,
    row_pointers,
    sort_by_destination,
)
from staticgraph.store.indices import renumbered, sort_types
from staticgraph.text.how_many import how_many

NONE: IntArray = np.empty(0, np.int64)


class SortedEdges(NamedTuple):
    """Edges in the order in which a store keeps them.

    The first four are empty if edges are columns.

    Attributes:
        src: ``[sum e]`` sources, numbered within their graphs.
        dst: ``[sum e]`` destinations, ascending within each graph.
        row_ptr: ``[sum n + 1]`` int64, where each node's incoming edges begin.
        transpose: ``[sum e]`` int64, for each graph the permutation that sorts its edges by source.
        columns: every field, with edge fields in the new order.
        origins: edge level -> ``[rows]`` int64, original position of each edge in its graph; levels
            that were already sorted are left out.
    """

    src: Array
    dst: Array
    row_ptr: IntArray
    transpose: IntArray
    columns: dict[str, Array]
    origins: dict[str, IntArray]

    @classmethod
    def of(
        cls,
        edge_src: Array,
        edge_dst: Array,
        schema: Schema,
        columns: Mapping[str, Array],
        offsets: Mapping[str, IntArray],
        name: str,
    ) -> SortedEdges:
        """Sorts the edges of all graphs.

        Args:
            edge_src, edge_dst: ``[sum e]``, numbered within their graphs, in any order.
            schema: the schema of the columns, which says whether edges are columns.
            columns: one array per field, ``[rows of its level, *shape]``.
            offsets: level -> ``[n + 1]``, where each graph's rows begin.
            name: the data set's name in error messages.

        Raises:
            BadGraph: if an edge points outside its graph, or the number of edges does not match the
                graphs.
        """
        graphs = len(offsets["node"]) - 1
        src, dst = np.asarray(edge_src), np.asarray(edge_dst)
        if not schema.one_kind:
            src = dst = row_ptr = transpose = NONE
            moved, orders = sort_types(schema, columns, offsets, graphs)
        else:
            nodes, edges = offsets["node"], offsets["edge"]
            _check(src, dst, nodes, edges, name)
            moved, orders = dict(columns), {}
            order = sort_by_destination(dst, nodes, edges)
            if order is not None:
                src, dst, orders["edge"] = src[order], dst[order], order
                moved = renumbered(schema, moved, offsets, graphs, "edge", order)
            row_ptr, transpose = row_pointers(src, dst, nodes, edges)
        origins = {level: local_positions(o, offsets[level]) for level, o in orders.items()}
        return cls(src, dst, row_ptr, transpose, moved, origins)


def first_order(
    schema: Schema,
    ends: tuple[Array, Array],
    columns: Mapping[str, Array],
    offsets: Mapping[str, IntArray],
    origins: Mapping[str, Array],
) -> dict[str, Any]:
    """Returns the attributes of a store whose edges are in their original order again.

    Args:
        schema, columns: those of the sorted store.
        ends: its sources and destinations.
        offsets: level -> ``[n + 1]``, where each graph's rows begin.
        origins: edge level -> original position of each edge in its graph; levels that were not
            moved are left out, or empty.
    """
    graphs, (src, dst), columns = len(offsets["node"]) - 1, ends, dict(columns)
    for level, origin in origins.items():
        if not len(origin):
            continue
        bounds = offsets[level]
        order = np.empty(len(origin), np.int64)
        order[origin + np.repeat(bounds[:-1], np.diff(bounds))] = np.arange(len(origin))
        columns = renumbered(schema, columns, offsets, graphs, level, order)
        columns |= {item.name: compact(columns[item.name]) for item in schema if item.counts}
        if schema.one_kind:
            src, dst = src[order], dst[order]
    return {
        "schema": replace(schema, keep_order=True),
        "edge_src": src,
        "edge_dst": dst,
        "columns": columns,
        **dict.fromkeys(("row_ptr", "transpose", "edge_origin"), NONE),
        "origins": {},
    }


def _check(src: Array, dst: Array, nodes: IntArray, edges: IntArray, name: str) -> None:
    """Rejects edges that are not integers, are miscounted, or point outside their graphs."""
    if src.dtype.kind not in "iu" or dst.dtype.kind not in "iu":
        raise BadGraph(f"{name}: edges are {src.dtype} and {dst.dtype}; use whole numbers")
    if not len(src) == len(dst) == edges[-1]:
        raise BadGraph(
            f"{name}: {how_many(len(src), 'source')} and {how_many(len(dst), 'destination')} for "
            f"{how_many(edges[-1], 'edge')}"
        )
    check_endpoints(src, dst, nodes, edges)
