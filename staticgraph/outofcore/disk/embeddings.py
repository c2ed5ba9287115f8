"""Embeddings and optimizer state on disk that survive a kill at any moment.

Problem: training rewrites the partitions again and again, and a process may die between any two
writes, or during one. Idea: every partition has two places in the file. The one written by the last
committed epoch is never touched; all writes of an epoch go to the other. A commit makes the data
durable and then replaces one small file, which records the valid place of each partition.
Invariant: after a kill, opening finds exactly the last committed epoch. This takes twice the disk
space, but unlike a redo log it writes nothing twice.

A record is ``partition_size`` rows of values followed by as many rows of Adagrad sums, float32. A
folder records how its embeddings were trained, and over which partitioned graph: to train further
with another configuration would mix two runs, and with another numbering of the nodes assign
embeddings to wrong ones.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import StoreCorrupt
from staticgraph.files import atomic, scratch
from staticgraph.files.checksum import require_written
from staticgraph.files.folder import require_only_files
from staticgraph.outofcore.disk.block_io import BlockFile
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.text.how_many import how_many

DATA = "embeddings.bin"
COMMIT = "commit.bin"
# Exists from before the first byte until epoch 0 is committed, to tell an interrupted creation from
# embeddings that lost a file.
CREATING = ".creating"
MAGIC = b"SGEMB001"
# Of a partition: the place of its last write, and its checksum.
WRITTEN = np.dtype([("place", np.uint8), ("crc32", np.uint32)])

FloatArray = NDArray[np.float32]


class EmbeddingFile:
    """Values and Adagrad sums of all partitions, with commits.

    Args:
        folder: a folder made by :meth:`create`.
        cached: keep data that was read or written in the page cache.

    Attributes:
        num_partitions, partition_size, dimension: ``p``, rows per partition, and values per row.
        epoch: the number of committed epochs.
        extras: the other arrays of the commit (relation parameters, a configuration).
        not_finite: partitions whose last write contained a NaN or infinite value or sum.

    Raises:
        FileNotFoundError: if nothing was ever committed there.
        StoreCorrupt: if the commit or the data is missing, or not what was written.
    """

    num_partitions: int
    partition_size: int
    dimension: int

    def __init__(self, folder: str | Path, *, cached: bool = True) -> None:
        # Absolute, so that commits do not depend on the current directory.
        self.folder: Path = Path(folder).absolute()
        _require_both(self.folder)
        self._read_or_written, commit = _read_commit(self.folder / COMMIT)
        self.epoch: int = int(commit.pop("epoch"))
        self.num_partitions, self.partition_size, self.dimension = commit.pop("shape").tolist()
        self._committed = np.empty(self.num_partitions, WRITTEN)
        for field in ("place", "crc32"):
            self._committed[field] = commit.pop(field)
        self.extras: dict[str, NDArray[Any]] = commit
        self.not_finite: set[int] = set()
        self.rollback()
        self._file = BlockFile(self.folder / DATA, writable=True, cached=cached)
        expected = 2 * self.num_partitions * self.record_bytes
        if (length := (self.folder / DATA).stat().st_size) != expected:
            raise StoreCorrupt(
                f"{self.folder / DATA} has {how_many(length, 'byte')} instead of {expected}: it "
                "was cut or belongs to other embeddings; start training again in an empty folder"
            )

    @staticmethod
    def create(
        folder: str | Path,
        num_partitions: int,
        partition_size: int,
        dimension: int,
        initial: Callable[[int], FloatArray],
        extras: Mapping[str, NDArray[Any]],
    ) -> None:
        """Writes the initial values and commits them as epoch 0.

        The folder is created if missing; embeddings in it are replaced. ``initial`` returns a
        partition's values ``[partition_size, dimension]`` float32; the rest are as of the class.
        """
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        (root / CREATING).touch()
        (root / COMMIT).unlink(missing_ok=True)
        sums = np.zeros((partition_size, dimension), np.float32)
        written = np.zeros(num_partitions, WRITTEN)
        with (root / DATA).open("wb") as file:
            for partition in range(num_partitions):
                values = initial(partition)
                written["crc32"][partition] = _checksum(values, sums)
                file.write(values.data)
                file.write(sums.data)
            file.truncate(2 * num_partitions * 2 * sums.nbytes)
            os.fsync(file.fileno())
        shape = num_partitions, partition_size, dimension
        _write_commit(root, 0, shape, written, extras)
        (root / CREATING).unlink()

    @property
    def record_bytes(self) -> int:
        """Bytes per partition: values and sums."""
        return 2 * self.partition_size * self.dimension * 4

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""
        return self._file.bytes_read

    def read(self, partition: int, values: FloatArray, sums: FloatArray) -> None:
        """Fills two arrays ``[partition_size, D]`` with the last write of a partition.

        Raises:
            StoreCorrupt: if the record's checksum differs; the message names file and offset.
        """
        offset = self._offset(partition)
        self._file.read(offset, values)
        self._file.read(offset + values.nbytes, sums)
        require_written(
            _checksum(values, sums),
            int(self._written["crc32"][partition]),
            f"{self.folder / DATA}: partition {partition} at byte {offset}",
            "start training again or put back a copy",
        )

    def write(self, partition: int, values: FloatArray, sums: FloatArray) -> None:
        """Writes a partition to its uncommitted place."""
        self._written["place"][partition] = 1 - self._committed["place"][partition]
        offset = self._offset(partition)
        self._file.write(offset, values, sums)
        self._written["crc32"][partition] = _checksum(values, sums)
        # In float64 a sum of float32 values cannot overflow, so it is finite iff all of them are.
        with np.errstate(invalid="ignore"):
            total = values.sum(dtype=np.float64) + sums.sum(dtype=np.float64)
        if np.isfinite(total):
            self.not_finite.discard(partition)
        else:
            self.not_finite.add(partition)

    def sync(self) -> None:
        """Waits until everything written so far is on the disk."""
        os.fsync(self._file.descriptor)

    def require_latest(self) -> None:
        """Checks that no other trainer has committed since, whose work or this one would be lost.

        Raises:
            RuntimeError: if the commit in the folder is not the one that this object last read or
                wrote.
        """
        if _head(self.folder) != self._read_or_written:
            raise RuntimeError(
                f"{self.folder} was committed to, or removed, by another trainer since this one "
                f"was at epoch {self.epoch}: go on with that one, or open the folder again"
            )

    def commit(self, extras: Mapping[str, NDArray[Any]]) -> None:
        """Commits everything written so far, and these arrays, as what a restart finds.

        Raises:
            RuntimeError: if another trainer has committed since.
        """
        self.require_latest()
        self.sync()
        shape = self.num_partitions, self.partition_size, self.dimension
        epoch = self.epoch + 1
        self._read_or_written = _write_commit(self.folder, epoch, shape, self._written, extras)
        self.epoch, self.extras = epoch, dict(extras)
        self._committed = self._written.copy()

    def rollback(self) -> None:
        """Discards everything written since the last commit."""
        self._written = self._committed.copy()
        self.not_finite.clear()

    def close(self) -> None:
        """Closes the file; uncommitted writes are lost."""
        self._file.close()

    def _offset(self, partition: int) -> int:
        place = int(self._written["place"][partition])
        return (place * self.num_partitions + partition) * self.record_bytes


def open_embeddings(
    folder: Path,
    graph: PartitionedGraph,
    dimension: int,
    run: str,
    initial: Callable[[int], FloatArray],
    extras: Mapping[str, NDArray[Any]],
) -> EmbeddingFile:
    """Opens the embeddings of a run over a graph, or creates them.

    Args:
        folder, graph, dimension: of the run.
        run: what must be unchanged to continue.
        initial, extras: as for :meth:`EmbeddingFile.create`.

    Raises:
        ValueError: if the folder holds embeddings of another partitioning or run.
    """
    try:
        file = EmbeddingFile(folder, cached=graph.cached)
    except FileNotFoundError:
        extras = {"identity": bytes_of(run), "partition": bytes_of(graph.digest), **extras}
        shape = graph.num_partitions, graph.partition_size, dimension
        EmbeddingFile.create(folder, *shape, initial, extras)
        file = EmbeddingFile(folder, cached=graph.cached)
    recorded, trained = (
        file.extras.get(name, np.empty(0, np.uint8)).tobytes().decode()
        for name in ("partition", "identity")
    )
    problem = ""
    if recorded != graph.digest:
        problem = (
            f"of the partitioned graph {recorded or '(of an older version)'}; {graph.folder} is "
            f"{graph.digest}, whose nodes have other numbers: partition with the same seed over "
            "the same edges to go on"
        )
    elif trained != run:
        problem = f"trained as {trained}; this is {run}: go on with the same"
    if problem:
        file.close()
        raise ValueError(f"{folder} holds embeddings {problem}, or choose another folder")
    return file


def bytes_of(text: str) -> NDArray[np.uint8]:
    """Encodes a text as an array, which a commit can contain."""
    return np.frombuffer(text.encode(), np.uint8)


def _require_both(folder: Path) -> None:
    """Raises an error if one of the two files is missing, or nothing was ever committed."""
    data, commit = (folder / DATA).exists(), (folder / COMMIT).exists()
    if not commit and (not data or (folder / CREATING).exists()):
        raise FileNotFoundError(
            f"{folder} holds no committed embeddings: make them with EmbeddingFile.create(...)"
        )
    (folder / CREATING).unlink(missing_ok=True)
    if data != commit:
        there, gone = (DATA, COMMIT) if data else (COMMIT, DATA)
        raise StoreCorrupt(
            f"{folder} has {there} but no {gone}: what was trained there cannot be read without "
            f"it. Put {gone} back, or remove the folder to start training again"
        )


def require_only(folder: Path) -> None:
    """Rejects a folder that holds more than embeddings, since it is about to be removed.

    Raises:
        FileExistsError: if it does; the message names a file that would be lost.
    """
    parts = (path.name for path in scratch.find_beside(folder / COMMIT, "part"))
    if folder.is_dir():
        require_only_files(folder, {DATA, COMMIT, CREATING, *parts}, "folder of embeddings")


def _checksum(values: FloatArray, sums: FloatArray) -> int:
    return zlib.crc32(sums.data, zlib.crc32(values.data))


def _write_commit(
    folder: Path,
    epoch: int,
    shape: tuple[int, int, int],
    written: NDArray[Any],
    extras: Mapping[str, NDArray[Any]],
) -> bytes:
    """Returns what :func:`_head` then returns."""
    content = io.BytesIO()
    arrays: dict[str, Any] = {"place": written["place"], "crc32": written["crc32"]}
    arrays |= {f"extra.{name}": value for name, value in extras.items()}
    np.savez(content, epoch=epoch, shape=shape, **arrays)
    body = content.getvalue()
    head = MAGIC + zlib.crc32(body).to_bytes(4, "little")
    atomic.write_bytes(folder / COMMIT, head + body)
    return head


def _head(folder: Path) -> bytes:
    """Returns the magic bytes and checksum of the commit; empty if there is no commit."""
    try:
        with (folder / COMMIT).open("rb") as file:
            return file.read(len(MAGIC) + 4)
    except FileNotFoundError:
        return b""


def _read_commit(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Returns the magic bytes and checksum, and the arrays."""
    content = path.read_bytes()
    head, body = content[: len(MAGIC) + 4], content[len(MAGIC) + 4 :]
    if not head.startswith(MAGIC) or zlib.crc32(body).to_bytes(4, "little") != head[len(MAGIC) :]:
        raise StoreCorrupt(
            f"{path} is not a commit of this version, or was changed (checksum of the bytes from "
            f"{len(MAGIC) + 4} on): put back a copy, or start training again"
        )
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        return head, {name.removeprefix("extra."): arrays[name] for name in arrays}
