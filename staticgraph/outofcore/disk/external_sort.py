"""Sorts edges into p*p cells on disk, with memory independent of the number of edges.

There are two passes. The first reads the edges in chunks, renumbers the nodes, counts the edges of
the p*p cells and appends each edge to the spill file of its source partition. The counts determine
where each cell goes, so the second pass reads each spill file in slices, sorts a slice by
destination partition (stable, linear) and writes each run to its place. Invariant: the file holds
the edges ordered by (source partition, destination partition), in input order within a cell. The
size of a slice is bounded, so that a hub with most of the edges needs no extra memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop
from staticgraph.outofcore.disk.edge_source import EdgeSource, IntArray
from staticgraph.text.how_many import how_many

Progress = Callable[[str, int], None]


def sort_edges(
    source: EdgeSource,
    new_ids: NDArray[np.integer],
    num_partitions: int,
    size: int,
    folder: Path,
    *,
    chunk: int,
    dtype: np.dtype,
    progress: Progress,
) -> tuple[IntArray, int, int]:
    """Writes ``folder/edges.bin``.

    Args:
        source: the edges with the caller's node numbers.
        new_ids: ``[N]``; the new number of each node.
        num_partitions: p.
        size: nodes per partition.
        folder: an empty folder.
        chunk: edges in memory at once; there are a few copies of them.
        dtype: the dtype of the file.
        progress: called with a stage and the number of edges processed in it.

    Returns:
        Where each cell begins, ``[p * p + 1]`` int64, in edges; the columns of a row; and the
        number of relations (0 without relations).
    """
    counts = np.zeros((num_partitions, num_partitions), dtype=np.int64)
    columns, relations = _spill(source, new_ids, size, counts, folder, dtype, progress)
    offsets = np.concatenate([[0], np.cumsum(counts.ravel())])
    _place(folder, offsets, num_partitions, size, columns, chunk, dtype, progress)
    return offsets, columns, relations


def _spill(
    source: EdgeSource,
    new_ids: NDArray[np.integer],
    size: int,
    counts: IntArray,
    folder: Path,
    dtype: np.dtype,
    progress: Progress,
) -> tuple[int, int]:
    p, columns, relations, done = len(counts), 2, 0, 0
    for rows in source:
        if done and len(rows) != columns:
            raise ValueError(
                f"edges up to {done} have {how_many(columns, 'row')}, later ones {len(rows)}"
            )
        columns = len(rows)
        written = np.empty((rows.shape[1], columns), dtype=dtype)
        written[:, 0] = new_ids[rows[0]]
        written[:, -1] = new_ids[rows[1]]
        if columns == 3:
            written[:, 1] = rows[2]
            relations = max(relations, int(rows[2].max(initial=-1)) + 1)
        starts = np.zeros(p + 1, dtype=np.int64)
        ordered = np.empty_like(written)
        _partition_rows(written, 0, size, starts, ordered)
        _count_cells(written, size, counts)
        for partition in np.flatnonzero(np.diff(starts)).tolist():
            with (folder / f"spill-{partition}").open("ab") as file:
                # Not tofile, whose error for a full disk only gives the number of items written.
                file.write(ordered[starts[partition] : starts[partition + 1]].data)
        done += rows.shape[1]
        progress("count", done)
    return columns, relations


def _place(
    folder: Path,
    offsets: IntArray,
    p: int,
    size: int,
    columns: int,
    chunk: int,
    dtype: np.dtype,
    progress: Progress,
) -> None:
    row_bytes, done = columns * dtype.itemsize, 0
    file = os.open(folder / "edges.bin", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        os.ftruncate(file, int(offsets[-1]) * row_bytes)
        for partition in range(p):
            spill = folder / f"spill-{partition}"
            if not spill.exists():
                continue
            at = offsets[partition * p : (partition + 1) * p].copy()
            with spill.open("rb") as rows_file:
                while True:
                    flat = np.fromfile(rows_file, dtype=dtype, count=chunk * columns)
                    if not flat.size:
                        break
                    rows = flat.reshape(-1, columns)
                    starts = np.zeros(p + 1, dtype=np.int64)
                    ordered = np.empty_like(rows)
                    _partition_rows(rows, columns - 1, size, starts, ordered)
                    for cell in np.flatnonzero(np.diff(starts)).tolist():
                        run = ordered[starts[cell] : starts[cell + 1]]
                        write_all(file, run, int(at[cell]) * row_bytes)
                        at[cell] += len(run)
                    done += len(rows)
                    progress("place", done)
            spill.unlink()
        os.fsync(file)
    finally:
        os.close(file)


def write_all(file: int, array: NDArray[np.generic], offset: int) -> None:
    """Calls ``pwrite`` until everything is written, since one call may write less."""
    data = np.ascontiguousarray(array).data.cast("B")
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


@loop
def _partition_rows(rows, column, size, starts, ordered):
    """Sorts rows by the partition of one column, with a stable counting sort."""
    for e in range(rows.shape[0]):
        starts[rows[e, column] // size + 1] += 1
    for k in range(1, len(starts)):
        starts[k] += starts[k - 1]
    at = starts[:-1].copy()
    for e in range(rows.shape[0]):
        k = rows[e, column] // size
        for c in range(rows.shape[1]):
            ordered[at[k], c] = rows[e, c]
        at[k] += 1


@loop
def _count_cells(rows, size, counts):
    last = rows.shape[1] - 1
    for e in range(rows.shape[0]):
        counts[rows[e, 0] // size, rows[e, last] // size] += 1
