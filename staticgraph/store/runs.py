"""Runs of consecutive graphs as stores: slices of the columns, not copied or widened."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.objects import ObjectColumn
from staticgraph.store.sharded import Sharded


def slices(
    store: GraphColumns, graphs: int, first: int = 0, last: int | None = None
) -> Iterator[GraphColumns]:
    """Yields graphs ``first`` to ``last - 1`` in runs of at most ``graphs``.

    Each run is checked against its checksums first. For a store in shards, no run crosses the end
    of a shard.
    """
    last = len(store) if last is None else last
    if isinstance(store, Sharded):
        for begin, shard in store.opened(first, last):
            here = max(first - begin, 0), min(last - begin, len(shard))
            yield from slices(shard, graphs, *here)
        return
    for begin in range(first, last, graphs):
        end = min(begin + graphs, last)
        store.verify(np.arange(begin, end))
        yield stretch(store, begin, end)


def stretch(store: GraphColumns, first: int, last: int) -> GraphColumns:
    """Returns graphs ``first`` to ``last - 1`` of a store in one piece, as a store."""

    def bounds(level: str) -> IntArray:
        """Returns ``[last - first + 1]``: where the rows of each graph begin."""
        return np.asarray(store.offsets_of(level)[first : last + 1])

    def rows(level: str) -> slice:
        """Returns the rows of all of these graphs."""
        begins = bounds(level)
        return slice(int(begins[0]), int(begins[-1]))

    def rows_of(array: Array, level: str) -> Array:
        """Returns the part of an array with these graphs; an empty array is returned as it is."""
        return array[rows(level)] if len(array) else array

    schema, edges = store.schema, rows("edge")
    columns = {}
    for field in schema:
        here = rows(field.level)
        wide = field.rows if field.level == "graph" else 1
        columns[field.name] = store.columns[field.name][here.start * wide : here.stop * wide]
    pointers = store.row_ptr
    if len(pointers):
        nodes = rows("node")
        own = pointers[nodes.start : nodes.stop + 1].astype(np.int64) - edges.start
        pointers = own.astype(pointer_dtype(edges.stop - edges.start))
    return GraphColumns(
        schema=schema,
        node_offsets=bounds("node") - bounds("node")[0],
        edge_offsets=bounds("edge") - bounds("edge")[0],
        edge_src=rows_of(store.edge_src, "edge"),
        edge_dst=rows_of(store.edge_dst, "edge"),
        row_ptr=pointers,
        transpose=rows_of(store.transpose, "edge"),
        edge_origin=rows_of(store.edge_origin, "edge"),
        columns=columns,
        name=store.name,
        offsets={axis.name: bounds(axis.name) - bounds(axis.name)[0] for axis in schema.axes},
        origins={axis: rows_of(origin, axis) for axis, origin in store.origins.items()},
        objects={
            name: ObjectColumn(
                column.text[int(column.ends[first]) : int(column.ends[last])],
                column.ends[first : last + 1] - column.ends[first],
            )
            for name, column in store.objects.items()
        },
    )
