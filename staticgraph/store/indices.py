"""Values that refer to rows of their graph: index fields, and edges, sorted by destination.

A batch adds to each value the number of rows before its graph (PyG's ``__inc__``), so an
out-of-range value would silently point into another graph. Such values are rejected when a store is
built, with an error that names the graph.

Sums over neighbours need no atomics if the incoming edges of a node are adjacent, so a store sorts
edges once, graph by graph. Edge fields are permuted with them, index fields that refer to edges are
renumbered, and the original position of each edge is kept, so that a graph can be read back as it
went in, and a whole store be put back in order for a model that reads edges by their position
(:func:`first_order`). Invariant: for homogeneous graphs, ``edge_index`` becomes ``src`` and ``dst``
with pointers; for heterogeneous data, or if edges join two levels, each ``edge_index`` stays a
column and these are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from staticgraph.errors import BadGraph
from staticgraph.schema import Field, Schema
from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store.columns import (
    Array,
    compact,
    graph_at,
    local_positions,
    row_pointers,
    sort_by_destination,
)
from staticgraph.text.how_many import how_many

Offsets = Mapping[str, IntArray]
NONE: IntArray = np.empty(0, np.int64)


def graph_of_row(field: Field, offsets: Offsets) -> IntArray:
    """Returns ``[rows]``: the graph of each row of a field's column."""
    counts = np.diff(offsets[field.level]) * field.rows
    return np.repeat(np.arange(len(counts)), counts)


def counted(field: Field) -> list[tuple[int, str]]:
    """Returns the position and the level of each scalar of a row that is an index into a level."""
    levels = field.counts * field.width if len(field.counts) == 1 else field.counts
    return [(place, level) for place, level in enumerate(levels) if level]


def check_indices(schema: Schema, columns: Mapping[str, Array], offsets: Offsets) -> None:
    """Rejects index values that are out of range.

    Raises:
        BadGraph: if a value is out of range or a field is not integral; the message names the field
            and, for a value, its graph.
    """
    for field in schema:
        if not field.counts:
            continue
        column = columns[field.name]
        if column.dtype.kind not in "iu":
            raise BadGraph(
                f"{field.name!r} is {column.dtype} and counts {' and '.join(set(field.counts))}: "
                "an index holds whole numbers; convert it, or let __inc__ return 0 for it"
            )
        if (outside := first_outside(field, column, offsets)) is not None:
            raise BadGraph(
                f"{outside.words}; fix them, rename the field if it is not an index, or pass "
                f"exclude=[{field.name!r}]"
            )


class Outside(NamedTuple):
    """A value of an index field beyond the ``most`` rows that its graph has of a level."""

    field: str
    graph: int
    value: int
    level: str
    most: int

    @property
    def words(self) -> str:
        """The description of the error."""
        return (
            f"graph {self.graph} has {self.value} in {self.field!r}, which counts {self.level!r}, "
            f"of which it has {self.most}: values must be from 0 and below that"
        )


def first_outside(field: Field, column: Array, offsets: Offsets) -> Outside | None:
    """Returns the first out-of-range value of an index field's column ``[rows, *shape]``, or None.

    Offsets are those of its own level, and of the levels that it indexes.
    """
    flat = column.reshape(-1, field.width)
    owner = graph_of_row(field, offsets)
    for place, level in counted(field):
        values = flat[:, place]
        most = np.diff(offsets[level])
        wrong = (values < 0) | (values >= most[owner])
        if wrong.any():
            row = int(wrong.argmax())
            graph = int(owner[row])
            return Outside(field.name, graph, int(values[row]), level, int(most[graph]))
    return None


def renumbered(
    fields: Iterable[Field],
    columns: Mapping[str, Array],
    offsets: Offsets,
    level: str,
    order: IntArray,
) -> dict[str, Array]:
    """Returns the columns after permuting ``level`` by ``order`` (positions among all rows).

    Fields on the level have their rows moved; fields that index the level have their values
    renumbered.
    """
    now = np.empty_like(order)
    now[order] = np.arange(len(order))
    first = offsets[level][:-1]
    changed = dict(columns)
    for field in fields:
        column = changed[field.name]
        places = [place for place, of in counted(field) if of == level]
        if places:
            owner = graph_of_row(field, offsets)
            flat = column.reshape(-1, field.width).astype(np.int64)
            for place in places:
                at = flat[:, place] + first[owner]
                flat[:, place] = now[at] - first[owner]
            column = flat.reshape(column.shape)
        if field.level == level:
            column = column[order]
        changed[field.name] = column
    return changed


def sorted_edges(
    edge_src: Array,
    edge_dst: Array,
    schema: Schema,
    columns: Mapping[str, Array],
    offsets: Offsets,
    name: str,
    narrow: Callable[[Array], Array] = compact,
) -> dict[str, Any]:
    """Returns the attributes of a store whose edges are sorted by destination, graph by graph.

    Args:
        edge_src, edge_dst: ``[sum e]``, numbered within their graphs, in any order.
        schema: says whether edges are columns.
        columns: one array per field, ``[rows of its level, *shape]``.
        offsets: level -> ``[n + 1]``, where each graph's rows begin.
        name: the data set's, for messages.
        narrow: changes the dtype of each array.

    Raises:
        BadGraph: if an edge points outside its graph, or the number of edges does not match the
            graphs.
    """
    src, dst = np.asarray(edge_src), np.asarray(edge_dst)
    targets = {
        level: (columns[index][:, 1], schema[index].counts[1])
        for level, index in schema.edge_fields
    }
    if schema.one_kind:
        _check(src, dst, offsets["node"], offsets["edge"], name)
        targets = {"edge": (dst, "node")}
    moved, origins = dict(columns), dict[str, Array]()
    for level, (target, nodes) in targets.items():
        order = sort_by_destination(target, offsets[nodes], offsets[level])
        if order is None:
            continue
        moved = renumbered(schema, moved, offsets, level, order)
        origins[level] = narrow(local_positions(order, offsets[level]))
        if schema.one_kind:
            src, dst = src[order], dst[order]
    row_ptr = transpose = NONE
    if schema.one_kind:
        row_ptr, transpose = row_pointers(src, dst, offsets["node"], offsets["edge"])
    else:
        src = dst = NONE
    return {
        "edge_src": narrow(src),
        "edge_dst": narrow(dst),
        "row_ptr": row_ptr.astype(pointer_dtype(int(offsets["edge"][-1])), copy=False),
        "transpose": narrow(transpose),
        "edge_origin": origins.pop("edge", np.empty(0, np.uint8)),
        "columns": {key: narrow(column) for key, column in moved.items()},
        "origins": origins,
    }


def first_order(
    schema: Schema,
    ends: tuple[Array, Array],
    columns: Mapping[str, Array],
    offsets: Offsets,
    origins: Mapping[str, Array],
) -> dict[str, Any]:
    """Returns the attributes of a store whose edges are in their original order again.

    Args:
        schema, columns, offsets: those of the sorted store.
        ends: its sources and destinations.
        origins: edge level -> original position of each edge in its graph; levels that were not
            moved are left out, or empty.
    """
    (src, dst), columns = ends, dict(columns)
    for level, origin in origins.items():
        if not len(origin):
            continue
        bounds = offsets[level]
        order = np.empty(len(origin), np.int64)
        order[origin + np.repeat(bounds[:-1], np.diff(bounds))] = np.arange(len(origin))
        columns = renumbered(schema, columns, offsets, level, order)
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
    most = np.repeat(np.diff(nodes), np.diff(edges))
    wrong = (src < 0) | (dst < 0) | (src >= most) | (dst >= most)
    if wrong.any():
        edge = int(wrong.argmax())
        graph = graph_at(edges, edge)
        raise BadGraph(
            f"graph {graph} has {how_many(most[edge], 'node')}, but its edge "
            f"{edge - edges[graph]} joins {src[edge]} -> {dst[edge]}: node numbers must be "
            f"from 0 and below {most[edge]}; fix edge_index or set num_nodes"
        )
