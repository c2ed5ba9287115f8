"""Runs of consecutive graphs: as stores, not copied or widened, and requested ahead of use.

A batch from a mapped store reads scattered pages and waits for each that is not in memory. If the
next rows are known, the system is advised to fetch them together in the background. This is advice
only: it affects speed, never results.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

from staticgraph.sizes.whole_numbers import pointer_dtype
from staticgraph.store.checks import by_block, rows_of
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns, assembled
from staticgraph.store.merge import CONTINUED
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
    return assembled(
        GraphColumns, store.schema, arrays_between(store, first, last), name=store.name
    )


def arrays_between(store: GraphColumns, first: int, last: int) -> dict[str, Array]:
    """Returns the arrays of graphs ``first`` to ``last - 1``, by the names of a store's arrays."""
    arrays = store.arrays()
    here: dict[str, Array] = {}
    for name, array in arrays.items():
        kind, _, key = name.partition(".")
        if kind == "split":
            continue
        if by_block(name):
            rows = rows_of(name, store.schema, arrays, first, last)
        elif kind == "objects":
            ends = arrays[f"object_ends.{key}"]
            rows = slice(int(ends[first]), int(ends[last]))
        else:
            rows = slice(first, last + 1)
        here[name] = array[rows]
        if name.startswith(CONTINUED) and len(array):
            here[name] = here[name].astype(np.int64) - int(array[rows.start])
    if len(here["row_ptr"]):
        here["row_ptr"] = here["row_ptr"].astype(pointer_dtype(int(here["edge_offsets"][-1])))
    return here


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
