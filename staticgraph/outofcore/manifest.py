"""What a partitioned graph's folder holds, said once and checked whenever it is opened.

The manifest carries the format's version, the sizes, and per file its bytes and the CRC-32 of each
block (a partition of features, a source partition of edges), so that damage is reported with the
file and the offset where it begins. It is written last and moved into place: a folder without one
is not a graph.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from staticgraph.documents import NOT_THERE
from staticgraph.errors import StoreCorrupt

FORMAT = "staticgraph.outofcore"
VERSION = 1
NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file: its bytes, where its blocks begin, and each block's CRC-32."""

    bytes: int
    blocks: tuple[int, ...]
    crc32: tuple[int, ...]

    @classmethod
    def of(cls, path: Path, blocks: Sequence[int] = (0,)) -> FileRecord:
        """Reads a file once; ``blocks`` are ascending offsets, the first of them 0."""
        ends = (*blocks[1:], path.stat().st_size)
        with path.open("rb") as file:
            sums = tuple(_crc(file, end - at) for at, end in zip(blocks, ends, strict=True))
        return cls(path.stat().st_size, tuple(blocks), sums)

    def check(self, path: Path, contents: bool) -> None:
        """Raises StoreCorrupt where the file is missing, of another length or other contents."""
        found = path.stat().st_size if path.exists() else None
        if found != self.bytes:
            raise StoreCorrupt(
                f"{path} has {'no' if found is None else found} bytes, the manifest says "
                f"{self.bytes}: the graph is incomplete; partition it again"
            )
        if not contents:
            return
        now = FileRecord.of(path, self.blocks)
        for at, then, found in zip(self.blocks, self.crc32, now.crc32, strict=True):
            if then != found:
                raise StoreCorrupt(
                    f"{path} is not what was written in the block from byte {at} on "
                    f"(CRC-32 {found:08x}, was {then:08x}): partition the graph again"
                )


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
    features: tuple[str, int] | None
    training_partitions: tuple[int, ...]
    seed: int
    files: dict[str, FileRecord]

    def __post_init__(self) -> None:
        numbers = ("num_nodes", "num_edges", "num_partitions", "partition_size", "columns")
        for name in (*numbers, "num_relations", "seed"):
            if type(getattr(self, name)) is not int:
                raise TypeError(f"{name} is {getattr(self, name)!r}")
        if np.dtype(self.index_dtype).kind not in "iu":
            raise TypeError(f"index_dtype is {self.index_dtype!r}")

    def save(self, folder: Path) -> None:
        """Writes the manifest in one move."""
        values = {"format": FORMAT, "version": VERSION, **asdict(self)}
        scratch = folder / f".{NAME}"
        with scratch.open("w") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, folder / NAME)

    @classmethod
    def load(cls, folder: Path, verify: bool = False) -> Manifest:
        """Reads and checks.

        Raises:
            FileNotFoundError: there is no manifest.
            StoreCorrupt: another format or version, or a file that is not as it was written.
        """
        path = folder / NAME
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} is not a partitioned graph: it has no {NAME}; make one with "
                "outofcore.partition(...)"
            )
        try:
            values: dict[str, Any] = json.loads(path.read_text())
            named = values.pop("format"), values.pop("version")
        except NOT_THERE as error:
            raise StoreCorrupt(f"{path} is not readable ({error}); partition again") from None
        if named != (FORMAT, VERSION):
            raise StoreCorrupt(
                f"{path} says {named[0]} version {named[1]}; this library reads {FORMAT} version "
                f"{VERSION}: partition the graph again"
            )
        try:
            files = {
                name: FileRecord(item["bytes"], tuple(item["blocks"]), tuple(item["crc32"]))
                for name, item in values.pop("files").items()
            }
            features = values.pop("features")
            training = tuple(values.pop("training_partitions"))
            manifest = cls(
                **values,
                files=files,
                features=None if features is None else (features[0], features[1]),
                training_partitions=training,
            )
        except NOT_THERE as error:
            raise StoreCorrupt(f"{path} lacks or has too much: {error}; partition again") from None
        for name, record in files.items():
            record.check(folder / name, verify)
        return manifest


def _crc(file: Any, length: int) -> int:
    checksum = 0
    while length and (block := file.read(min(length, 1 << 20))):
        checksum = zlib.crc32(block, checksum)
        length -= len(block)
    return checksum
