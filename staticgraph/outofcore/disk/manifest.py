"""The manifest of a partitioned graph's folder, which is checked whenever the graph is opened.

It holds the format version, the sizes, the length of each file, the CRC-32 of each block (a
partition of features, a source partition of edges), and a digest of all of that, so that damage is
reported with the file and the offset where it begins. It is written last: a folder without one is
not a graph. A correct digest does not make it trusted: inconsistent sizes are rejected here, and
the values of files are checked when they are first read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from staticgraph.errors import StoreCorrupt
from staticgraph.files import document
from staticgraph.files.checksum import crc32_of_stretch, require_length, require_written
from staticgraph.files.folder import Kind, repair
from staticgraph.text.how_many import how_many

FORMAT = "staticgraph.outofcore"
# 2: a checksum for each cell of edges, a digest of the manifest.
VERSION = 2
NAME = "manifest.json"
KIND = Kind("partitioned graph", FORMAT, NAME, lambda manifest: manifest["files"])

REMEDY = "partition the graph again"
NODE_IDS, OFFSETS, SUMS = "node_ids.npy", "offsets.npy", "checksums.npy"
EDGES, FEATURES = "edges.bin", "features.bin"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file: its length in bytes, where its blocks begin, and the CRC-32 of each block."""

    bytes: int
    blocks: list[int]
    crc32: list[int]

    @classmethod
    def of(cls, path: Path, blocks: Sequence[int] = (0,)) -> FileRecord:
        """Computes the record of a file; ``blocks`` are ascending offsets that start with 0."""
        ends = (*blocks[1:], path.stat().st_size)
        with path.open("rb") as file:
            sums = [
                crc32_of_stretch(file, end - begin) for begin, end in zip(blocks, ends, strict=True)
            ]
        return cls(path.stat().st_size, list(blocks), sums)

    def check(self, path: Path, contents: bool) -> None:
        """Raises StoreCorrupt if the file is missing, or its length or contents differ."""
        require_length(path, self.bytes, REMEDY)
        now = FileRecord.of(path, self.blocks).crc32 if contents else self.crc32
        for start, before, after in zip(self.blocks, self.crc32, now, strict=True):
            part = f" in the block from byte {start} on"
            require_written(after, before, f"{path}", REMEDY, part)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Sizes and files of one partitioned graph."""

    num_nodes: int
    num_edges: int
    num_partitions: int
    partition_size: int
    num_relations: int
    columns: int
    index_dtype: str
    features: Sequence[Any] | None  # the dtype, and F
    training_partitions: Sequence[int]
    seed: int
    files: dict[str, FileRecord]
    near: int = 0

    def save(self, folder: Path) -> None:
        """Writes the manifest atomically."""
        document.save(
            folder / NAME, {"format": FORMAT, "version": VERSION, **asdict(self)}, indent=None
        )

    @classmethod
    def load(cls, folder: Path, verify: bool = False) -> Manifest:
        """Reads the manifest and checks it and the files.

        Raises:
            FileNotFoundError: if there is no manifest.
            StoreCorrupt: if the format or version is another one, or a file is not as it was
                written.
        """
        repair(folder)
        path = folder / NAME
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} is not a partitioned graph: it has no {NAME}; make one with "
                "outofcore.partition(...)"
            )
        what, form = "the manifest of a partitioned graph", (FORMAT, (VERSION,))
        manifest = document.read_document(path, what, cls._from_values, StoreCorrupt, form=form)
        for name, record in manifest.files.items():
            # These small files are always checked; others when they are read, or here if requested.
            record.check(folder / name, verify or name in (OFFSETS, SUMS))
        return manifest

    @classmethod
    def _from_values(cls, values: dict[str, Any]) -> Manifest:
        files = {name: FileRecord(**record) for name, record in values["files"].items()}
        others = {k: v for k, v in values.items() if k not in ("format", "version", "files")}
        return cls(**others, files=files)

    def __post_init__(self) -> None:
        """Raises ValueError if sizes are inconsistent."""
        n, p, size = self.num_nodes, self.num_partitions, self.partition_size
        counts = [n, self.num_edges, p, size, self.num_relations, self.columns, self.near]
        counts += self.training_partitions
        for record in self.files.values():
            counts += record.bytes, *record.blocks, *record.crc32
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError("a size, block, checksum or partition is not a whole number")
        if not (n and p and size and size == math.ceil(n / p) and math.ceil(n / size) == p):
            raise ValueError(
                f"it has missing or unknown entries: {n:,} nodes are not in "
                f"{how_many(p, 'partition')} of {size}"
            )
        if self.columns not in ((3,) if self.num_relations else (2, 3)):
            raise ValueError(
                f"{how_many(self.columns, 'column')} of edges with "
                f"{how_many(self.num_relations, 'relation')}"
            )
        if self.index_dtype not in ("int32", "int64"):
            raise ValueError(f"node numbers are {self.index_dtype}")
        sizes = {EDGES: self.num_edges * self.columns * np.dtype(self.index_dtype).itemsize}
        if self.features is not None:
            dtype, width = np.dtype(self.features[0]), self.features[1]
            if dtype.kind not in "biuf" or type(width) is not int or width < 0:
                raise ValueError(f"features are {self.features}")
            sizes[FEATURES] = n * width * dtype.itemsize
        if set(self.files) != {NODE_IDS, OFFSETS, SUMS, *sizes}:
            raise ValueError(f"the files are {', '.join(self.files)}")
        for name, record in self.files.items():
            begins = [*record.blocks, record.bytes]
            form = record.bytes, len(record.blocks), len(record.crc32)
            expected = (sizes[name], p, p) if name in sizes else (record.bytes, 1, 1)
            if form != expected or begins != sorted(begins) or begins[0]:
                raise ValueError(
                    f"{name} has {how_many(record.bytes, 'byte')} in blocks {record.blocks[:4]}"
                )
        if max(self.training_partitions, default=0) >= p:
            raise ValueError(f"training partitions are {self.training_partitions[:4]}")
