"""Checks the blocks of a store against their checksums when they are first read.

Reading a whole store before its first batch would take as long as an epoch if it is larger than
memory, and not checking at all would train on whatever the disk returns. A block is therefore a run
of graphs of about one megabyte, over all arrays. Before a batch reads a graph, the graph's block is
checked once: its bytes against their CRC-32, then its values against the assumptions of loops
without bounds checks (:mod:`staticgraph.store.structure`). Invariant: nothing in a block is used
before the block was checked. Changes made after the check are not noticed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import StoreCorrupt
from staticgraph.files.checksum import crc32_of_array, require_written
from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.structure import (
    Damage,
    by_block,
    check_graphs,
    level_of,
    offsets_name,
    rows_of,
)

# A compromise: a batch of a shuffled epoch touches about as many blocks as it has graphs.
BLOCK_BYTES = 1 << 20


class Checks:
    """Tracks which blocks of an open store have been checked, and checks the others on demand.

    Args:
        name: the store's folder, for messages.
        schema, arrays: the store's.
        blocks: as :func:`blocks_of`.
        sums: as :func:`sums_of`; None if all bytes have been checked already.
    """

    def __init__(
        self,
        name: str,
        schema: Schema,
        arrays: Mapping[str, Array],
        blocks: IntArray,
        sums: NDArray[np.uint32] | None,
    ) -> None:
        self.name: str = name
        self._schema, self._arrays = schema, arrays
        self._blocks, self._sums = blocks, sums
        self._names = tuple(filter(by_block, arrays))
        self._done = np.zeros(len(blocks) - 1, bool)
        self._columns: set[str] = set()
        self.complete: bool = False

    def touch(self, ids: IntArray | None = None) -> None:
        """Checks the blocks that contain these graphs, or all blocks.

        Raises:
            StoreCorrupt: if a block is damaged; the message names the array and the graphs.
        """
        if self.complete:
            return
        blocks = np.arange(len(self._done))
        if ids is not None:
            touched = np.unique(np.searchsorted(self._blocks, ids, side="right") - 1)
            blocks = touched[(touched >= 0) & (touched < len(blocks))]
        for block in blocks.tolist():
            self._check(block)

    def column(self, name: str) -> None:
        """Checks all bytes of one array against their checksums."""
        if self.complete or name in self._columns or self._sums is None:
            return
        for block in range(len(self._done)):
            self._compare(block, (name,))
        self._columns.add(name)

    def _check(self, block: int) -> None:
        if self._done[block]:
            return
        self._compare(block, self._names)
        first, last = self._blocks[block : block + 2].tolist()
        try:
            check_graphs(self._schema, self._arrays, first, last)
        except Damage as error:
            raise StoreCorrupt(f"{self.name}: {error}") from None
        self._done[block] = True
        self.complete = bool(self._done.all())

    def _compare(self, block: int, names: tuple[str, ...]) -> None:
        if self._sums is None:
            return
        first, last = self._blocks[block : block + 2].tolist()
        for name in names:
            rows = rows_of(name, self._schema, self._arrays, first, last)
            require_written(
                crc32_of_array(self._arrays[name][rows]),
                int(self._sums[block, self._names.index(name)]),
                f"{self.name}: the array {name}",
                "build it again",
                f" in the rows of graphs {first} to {last - 1}",
            )


def blocks_of(schema: Schema, arrays: Mapping[str, Array]) -> IntArray:
    """Returns ``[b + 1]``: the first graph of each block; a block has about :data:`BLOCK_BYTES`."""
    graphs = len(arrays["node_offsets"]) - 1
    ends = np.zeros(graphs + 1)
    for name, array in arrays.items():
        if not by_block(name) or not len(array):
            continue
        row_bytes, (level, rows) = array.nbytes / len(array), level_of(name, schema)
        offsets = np.arange(graphs + 1) if level == "graph" else arrays[offsets_name(level)]
        ends += row_bytes * rows * np.asarray(offsets)
    marks = np.arange(0, max(ends[-1], 1), BLOCK_BYTES)
    first = np.searchsorted(ends[:-1], marks, side="left")
    return np.unique(np.append(np.minimum(first, graphs - 1), graphs)).astype(np.int64)


def sums_of(schema: Schema, arrays: Mapping[str, Array], blocks: IntArray) -> NDArray[np.uint32]:
    """Returns ``[b, a]``: CRC-32 of each block of each array checked by block, in order."""
    names = list(filter(by_block, arrays))
    sums = np.empty((len(blocks) - 1, len(names)), np.uint32)
    for block in range(len(blocks) - 1):
        first, last = blocks[block : block + 2].tolist()
        for place, name in enumerate(names):
            rows = rows_of(name, schema, arrays, first, last)
            sums[block, place] = crc32_of_array(arrays[name][rows])
    return sums
