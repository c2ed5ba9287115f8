"""Tells the operating system which rows of a mapped array will be read soon.

A batch from a mapped store reads scattered pages and waits for each that is not in memory. If the
next rows are known, the system is advised to fetch them together in the background. This is advice
only: it affects speed, never results.
"""

from __future__ import annotations

import mmap

import numpy as np

from staticgraph.store.checks import by_block, rows_of
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.sharded import Sharded


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
        _asked(array, rows_of(name, store.schema, arrays, first, last))
        for name, array in arrays.items()
        if by_block(name)
    )


def _asked(array: Array, rows: slice) -> int:
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
