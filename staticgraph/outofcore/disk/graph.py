"""An open partitioned graph: sizes are in memory, edges and features are read by block.

Node numbers are the new ones assigned by partitioning: node v is in partition v // partition_size.
``node_ids`` maps them back to the caller's numbers. The graph is read-only; values that training
changes are in :mod:`staticgraph.outofcore.disk.embeddings`. A cell of edges or a partition of
features is checked when it is first read, against its checksum, and the nodes of the edges against
their partitions: all later code relies on this.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import StoreCorrupt
from staticgraph.files.checksum import crc32_of_array, read_array, require_written
from staticgraph.outofcore.disk.block_io import BlockFile
from staticgraph.outofcore.disk.manifest import (
    EDGES,
    FEATURES,
    NODE_IDS,
    OFFSETS,
    REMEDY,
    SUMS,
    Manifest,
)
from staticgraph.outofcore.policies.policy import Cell
from staticgraph.sizes.whole_numbers import IntArray

# Of sampling: the sources of incoming edges, the destinations of outgoing ones, or either.
Direction = Literal["in", "out", "both"]
# Of each direction, the columns of an edge at whose node its other end is a neighbour.
ENDS: dict[Direction, tuple[int, ...]] = {"in": (-1,), "out": (0,), "both": (-1, 0)}


def require_direction(direction: Direction) -> None:
    """Raises ValueError, with the choices, if this is no direction."""
    if direction not in ENDS:
        raise ValueError(f"direction={direction!r}; choose one of {', '.join(ENDS)}")


class PartitionedGraph:
    """A folder written by :func:`staticgraph.outofcore.partition`.

    Args:
        folder: the folder.
        verify: read everything and check all checksums now, not when a block is first read.
        cached: keep data that was read in the page cache; also used for the embeddings of its
            trainers.

    Raises:
        FileNotFoundError: if there is no partitioned graph.
        StoreCorrupt: if a file is missing, truncated or changed; the message names file and offset.
    """

    folder: Path
    cached: bool

    def __init__(self, folder: str | Path, *, verify: bool = False, cached: bool = True) -> None:
        # Absolute, so that later reads do not depend on the current directory.
        self.folder, self.cached = Path(folder).absolute(), cached
        self.manifest: Manifest = (m := Manifest.load(self.folder, verify))
        self.num_nodes: int = m.num_nodes
        self.num_edges: int = m.num_edges
        self.num_partitions: int = m.num_partitions
        self.partition_size: int = m.partition_size
        self.num_relations: int = m.num_relations
        self.columns: int = m.columns
        p = m.num_partitions
        self.offsets: IntArray = self._array(OFFSETS, "int64", p * p + 1)
        ends = (int(self.offsets[0]), int(self.offsets[-1]))
        if ends != (0, m.num_edges) or np.diff(self.offsets).min() < 0:
            raise StoreCorrupt(
                f"{self.folder / OFFSETS} goes from {ends[0]} to {ends[1]}, in "
                f"order or not; offsets ascend from 0 to {m.num_edges}: {REMEDY}"
            )
        self._cell_sums = self._array(SUMS, "uint32", p * p)
        self._read_cells = np.zeros(p * p, bool)
        self._read_features = np.zeros(p, bool)
        self.edge_file: BlockFile = BlockFile(self.folder / EDGES, cached=cached)
        self.feature_file: BlockFile | None = None
        if m.features is not None:
            self.feature_file = BlockFile(self.folder / FEATURES, cached=cached)
        self._degrees: dict[tuple[Direction, bool], NDArray[np.int32]] = {}

    @cached_property
    def node_ids(self) -> IntArray:
        """``[N]`` the caller's number of each node, memory-mapped.

        Raises:
            StoreCorrupt: if they are not what was written, or not a permutation.
        """
        self.manifest.files[NODE_IDS].check(self.folder / NODE_IDS, contents=True)
        ids = self._array(NODE_IDS, "int64", self.num_nodes, "r")
        visited = np.zeros(self.num_nodes, bool)
        if ids.min() >= 0 and ids.max() < self.num_nodes:
            visited[ids] = True
        if not visited.all():
            raise StoreCorrupt(
                f"{self.folder / NODE_IDS} does not have every number below {self.num_nodes} once: "
                f"{REMEDY}"
            )
        return ids

    @cached_property
    def numbers(self) -> IntArray:
        """``[N]`` the number of each of the caller's nodes: the inverse of ``node_ids``."""
        numbers = np.empty(self.num_nodes, np.int64)
        numbers[self.node_ids] = np.arange(self.num_nodes)
        return numbers

    @property
    def cell_sizes(self) -> IntArray:
        """``[p, p]`` edges of each cell."""
        return np.diff(self.offsets).reshape(self.num_partitions, self.num_partitions)

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change with any edge, the node numbering or the partitioning."""
        numbers = [self.num_nodes, self.num_partitions, self.partition_size]
        for file in (self.manifest.files[name] for name in (NODE_IDS, OFFSETS, EDGES)):
            numbers += [file.bytes, *file.blocks, *file.crc32]
        return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]

    def nodes_of(self, partition: int) -> int:
        """Returns the number of nodes in a partition; the last may have fewer.

        Raises:
            IndexError: if there is no such partition.
        """
        if not 0 <= partition < self.num_partitions:
            raise IndexError(f"partition {partition} of {self.num_partitions}")
        return min(self.partition_size, self.num_nodes - partition * self.partition_size)

    def read_cells(self, cells: Iterable[Cell]) -> NDArray[Any]:
        """Returns ``[n, 2 or 3]``: source, (relation,) destination of the edges of these cells.

        Edges are in the order of the file; adjacent cells are read at once.
        """
        places = np.array(sorted(i * self.num_partitions + j for i, j in cells), np.int64)
        sizes = self.offsets[places + 1] - self.offsets[places]
        bounds = [0, *np.cumsum(sizes).tolist()]
        rows = np.empty((bounds[-1], self.columns), self.manifest.index_dtype)
        for run in np.split(np.arange(len(places)), np.flatnonzero(np.diff(places) != 1) + 1):
            if len(run):
                begins = int(self.offsets[places[run[0]]]) * rows.strides[0]
                self.edge_file.read(begins, rows[bounds[run[0]] : bounds[run[-1] + 1]])
        for cell, low, high in zip(places.tolist(), bounds, bounds[1:], strict=False):
            self._check_cell(cell, rows[low:high])
        return rows

    def read_edges(self) -> NDArray[Any]:
        """Returns the rows of :meth:`read_cells` for all edges, in memory."""
        every = range(self.num_partitions)
        return self.read_cells(product(every, every))

    def _check_cell(self, cell: int, edges: NDArray[Any]) -> None:
        """Checks the edges of a cell when it is first read."""
        if self._read_cells[cell]:
            return
        partitions = divmod(cell, self.num_partitions)
        byte = int(self.offsets[cell]) * edges.strides[0]
        where = f"{self.edge_file.path}: cell {partitions} at byte {byte}"
        require_written(crc32_of_array(edges), int(self._cell_sums[cell]), where, REMEDY)
        for end, partition in zip((0, -1), partitions, strict=True):
            first = partition * self.partition_size
            last = first + self.nodes_of(partition) - 1
            wrong = (edges[:, end] < first) | (edges[:, end] > last)
            if wrong.any():
                raise StoreCorrupt(
                    f"{where}: node {edges[wrong.argmax(), end]} is not of partition {partition}, "
                    f"{first} to {last}: {REMEDY}"
                )
        if self.columns == 3 and len(edges):
            least, most = int(edges[:, 1].min()), int(edges[:, 1].max())
            if least < 0 or most >= self.num_relations:
                raise StoreCorrupt(
                    f"{where}: relations go from {least} to {most}, but there are "
                    f"{self.num_relations}: {REMEDY}"
                )
        self._read_cells[cell] = True

    def read_features(self, partition: int, into: NDArray[Any]) -> None:
        """Fills the first ``nodes_of(partition)`` rows of ``into`` (``[partition_size, F]``).

        Raises:
            ValueError: if the graph was partitioned without features.
            StoreCorrupt: if they are not what was written.
        """
        if self.feature_file is None:
            raise ValueError(f"{self.folder} was partitioned without features; give features=")
        begins, rows = partition * into.nbytes, into[: self.nodes_of(partition)]
        self.feature_file.read(begins, rows)
        if self._read_features[partition]:
            return
        where = f"{self.feature_file.path}: partition {partition} at byte {begins}"
        checksum = self.manifest.files[FEATURES].crc32[partition]
        require_written(crc32_of_array(rows), checksum, where, REMEDY)
        self._read_features[partition] = True

    def degrees(self, direction: Direction = "in", *, loops: bool = True) -> NDArray[np.int32]:
        """Returns ``[N]`` degrees in the whole graph, read-only, with self-loops or without.

        Counted in one pass over the edges, one partition at a time, and cached.

        Raises:
            ValueError: if there is no such direction.
        """
        require_direction(direction)
        if (direction, loops) not in self._degrees:
            total = np.zeros(self.num_nodes, np.int32)
            for source in range(self.num_partitions):
                rows = self.read_cells((source, j) for j in range(self.num_partitions))
                if not loops:
                    rows = rows[rows[:, 0] != rows[:, -1]]
                for end in ENDS[direction]:
                    np.add.at(total, rows[:, end], 1)
            total.flags.writeable = False  # the next caller, and the loaders, read the same array
            self._degrees[direction, loops] = total
        return self._degrees[direction, loops]

    def _array(
        self, name: str, dtype: str, length: int, mmap_mode: Literal["r"] | None = None
    ) -> NDArray[Any]:
        """Loads a vector from a file whose bytes were checked, and checks its dtype and length."""
        path = self.folder / name
        array = read_array(path, REMEDY, mmap_mode)
        if not isinstance(array, np.ndarray) or (array.dtype, array.shape) != (dtype, (length,)):
            raise StoreCorrupt(
                f"{path} is not {dtype} of shape ({length},), as the manifest says: {REMEDY}"
            )
        return array

    def close(self) -> None:
        """Closes the files."""
        self.edge_file.close()
        if self.feature_file is not None:
            self.feature_file.close()

    def __repr__(self) -> str:
        return (
            f"PartitionedGraph({str(self.folder)!r}, nodes={self.num_nodes}, "
            f"edges={self.num_edges}, partitions={self.num_partitions})"
        )
