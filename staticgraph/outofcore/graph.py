"""A partitioned graph, opened: sizes in memory, edges and features read by block.

The numbers here are the new ones, given when the graph was partitioned: node v is in partition
v // partition_size. ``node_ids`` leads back to the caller's. Read-only; what training changes lives
in :mod:`staticgraph.outofcore.embeddings`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import StoreCorrupt
from staticgraph.outofcore.manifest import Manifest
from staticgraph.outofcore.neighbours import Direction
from staticgraph.outofcore.reading import BlockFile
from staticgraph.outofcore.schedule import Bucket


class PartitionedGraph:
    """A folder that :func:`staticgraph.outofcore.partition` wrote.

    Args:
        folder: the folder.
        verify: read everything once and compare checksums.
        cached: leave what is read in the page cache; so for the embeddings of its trainers.

    Raises:
        FileNotFoundError: no partitioned graph is there.
        StoreCorrupt: a file is missing, cut or changed; the message names file and offset.
    """

    def __init__(self, folder: str | Path, *, verify: bool = False, cached: bool = True) -> None:
        self.folder, self.cached = Path(folder), cached
        self.manifest = Manifest.load(self.folder, verify)
        m = self.manifest
        self.num_nodes = m.num_nodes
        self.num_edges = m.num_edges
        self.num_partitions = m.num_partitions
        self.partition_size = m.partition_size
        self.num_relations = m.num_relations
        self.columns = m.columns
        self.dtype = np.dtype(m.index_dtype)
        self.node_ids: NDArray[np.int64] = np.load(self.folder / "node_ids.npy", mmap_mode="r")
        self.offsets: NDArray[np.int64] = np.load(self.folder / "offsets.npy")
        if len(self.offsets) != m.num_partitions**2 + 1 or self.offsets[-1] != m.num_edges:
            raise StoreCorrupt(
                f"{self.folder / 'offsets.npy'} has {len(self.offsets)} entries and ends at "
                f"{self.offsets[-1]}; the manifest says {m.num_partitions}^2 + 1 and {m.num_edges}"
            )
        self.edge_file = BlockFile(self.folder / "edges.bin", cached=cached)
        self.feature_file = None
        if m.features is not None:
            self.feature_file = BlockFile(self.folder / "features.bin", cached=cached)
        self._degrees: dict[Direction, NDArray[np.int32]] = {}

    @property
    def bucket_sizes(self) -> NDArray[np.int64]:
        """``[p, p]`` edges of each bucket."""
        return np.diff(self.offsets).reshape(self.num_partitions, self.num_partitions)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with the numbering of the nodes, with the cut into
        partitions and with any edge (SHA-256 of the files' checksums)."""
        files = self.manifest.files
        said = [self.num_nodes, self.num_partitions, self.partition_size]
        for name in ("node_ids.npy", "offsets.npy", "edges.bin"):
            said += [files[name].bytes, *files[name].blocks, *files[name].crc32]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    def nodes_of(self, partition: int) -> int:
        """Real nodes of a partition; the last may have fewer."""
        return min(self.partition_size, self.num_nodes - partition * self.partition_size)

    def read_buckets(self, buckets: Sequence[Bucket]) -> NDArray[Any]:
        """``[n, 2 or 3]``: source, (relation,) destination of the edges of these buckets, in the
        order of the file. Buckets that stand together are read at once."""
        wanted = sorted(i * self.num_partitions + j for i, j in buckets)
        total = sum(int(self.offsets[k + 1] - self.offsets[k]) for k in wanted)
        rows = np.empty((total, self.columns), dtype=self.dtype)
        row_bytes, done, at = self.columns * self.dtype.itemsize, 0, 0
        while at < len(wanted):
            last = at
            while last + 1 < len(wanted) and wanted[last + 1] == wanted[last] + 1:
                last += 1
            low, high = int(self.offsets[wanted[at]]), int(self.offsets[wanted[last] + 1])
            self.edge_file.read(low * row_bytes, [rows[done : done + high - low]])
            done, at = done + high - low, last + 1
        return rows

    def read_features(self, partition: int, into: NDArray[Any]) -> None:
        """Fills the first ``nodes_of(partition)`` rows of ``into`` (``[partition_size, F]``)."""
        if self.feature_file is None or self.manifest.features is None:
            raise ValueError(f"{self.folder} was partitioned without features; give features=")
        dtype, width = self.manifest.features
        row_bytes = np.dtype(dtype).itemsize * width
        self.feature_file.read(
            partition * self.partition_size * row_bytes, [into[: self.nodes_of(partition)]]
        )

    def degrees(self, direction: Direction = "in") -> NDArray[np.int32]:
        """``[N]`` neighbours of each node in the whole graph, resident or not.

        Counted in one pass over the edges, a partition's at a time, and kept.
        """
        if direction not in self._degrees:
            total = np.zeros(self.num_nodes, np.int32)
            ends = {"in": (-1,), "out": (0,), "both": (0, -1)}[direction]
            for source in range(self.num_partitions):
                rows = self.read_buckets([(source, j) for j in range(self.num_partitions)])
                for end in ends:
                    _count(rows[:, end], total)
            self._degrees[direction] = total
        return self._degrees[direction]

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


@numba.njit(cache=True, nogil=True)
def _count(nodes, total):
    for e in range(len(nodes)):
        total[nodes[e]] += 1
