"""Runs of consecutive graphs: as stores, not copied or widened, and requested ahead of use.

A batch from a mapped store reads scattered pages and waits for each that is not in memory. If the
next rows are known, the system is advised to fetch them together in the background. This is advice
only: it affects speed, never results.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store.checks import by_block, rows_of
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

    def rows_in(array: Array, level: str) -> Array:
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
        edge_src=rows_in(store.edge_src, "edge"),
        edge_dst=rows_in(store.edge_dst, "edge"),
        row_ptr=pointers,
        transpose=rows_in(store.transpose, "edge"),
        edge_origin=rows_in(store.edge_origin, "edge"),
        columns=columns,
        name=store.name,
        offsets={axis.name: bounds(axis.name) - bounds(axis.name)[0] for axis in schema.axes},
        origins={axis: rows_in(origin, axis) for axis, origin in store.origins.items()},
        objects={
            name: ObjectColumn(
                column.text[int(column.ends[first]) : int(column.ends[last])],
                column.ends[first : last + 1] - column.ends[first],
            )
            for name, column in store.objects.items()
        },
    )


def read_ahead(store: GraphColumns, first: int, last: int) -> int:
    """Requests the rows of graphs ``first`` to ``last - 1``.

    Returns:
        The number of bytes requested; 0 for a store in main memory.
    """
    if isinstance(store, Sharded):
        return sum(
            read_ahead(shard, max(first - begin, 0), min(last - begin, len(shard)))
            for begin, shard in store.opened(first, last)
        )
    arrays = store.arrays()
    return sum(
        _advise(array, rows_of(name, store.schema, arrays, first, last))
        for name, array in arrays.items()
        if by_block(name)
    )


def _advise(array: Array, rows: slice) -> int:
    if not isinstance(array, np.memmap) or not len(array) or not hasattr(mmap, "MADV_WILLNEED"):
        return 0
    held = array._mmap  # type: ignore[attr-defined]  # NumPy's mapping has no public name
    row_bytes = array.nbytes // len(array)
    begin = array.offset % mmap.ALLOCATIONGRANULARITY + rows.start * row_bytes
    length = (rows.stop - rows.start) * row_bytes
    if length <= 0:
        return 0
    page = begin // mmap.PAGESIZE * mmap.PAGESIZE
    held.madvise(mmap.MADV_WILLNEED, page, begin + length - page)
    return length
