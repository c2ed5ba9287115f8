"""Sorts edges into p*p cells on disk, with memory independent of the number of edges.

There are two passes. The first reads the edges in chunks, renumbers the nodes, counts the edges of
the p*p cells and appends each edge to the spill file of its source partition. The counts determine
where each cell goes, so the second pass reads each spill file in slices, sorts a slice by
destination partition (stable, linear) and writes each run to its place. Invariant: the file holds
the edges ordered by (source partition, destination partition), in input order within a cell. The
size of a slice is bounded, so that a hub with most of the edges needs no extra memory.

A caller's edges are read in checked chunks, front to back, never all at once, so they may come from
a function that generates them on the fly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch_geometric.data.data import BaseData

from staticgraph.errors import BadGraph
from staticgraph.outofcore.disk.array_files import array_of, check_edges, check_form
from staticgraph.store.columns import sort_by_key
from staticgraph.text.how_many import how_many

Progress = Callable[[str, int], None]
IntArray = NDArray[np.int64]
EdgeFunction = Callable[[], Iterable[NDArray[Any]]]
# Relations are written in the dtype of node numbers, which is int32 below 2**31 nodes.
MOST_RELATIONS = 2**31 - 1
Edges = ArrayLike | str | Path | EdgeFunction


class EdgeSource:
    """Edges in chunks, front to back; the arguments are those of
    :func:`staticgraph.outofcore.partition`.

    Raises (while iterating):
        BadGraph: if an endpoint is outside ``[0, N)``, a relation is negative or at least
            ``2**31 - 1``, or an array has another form.
    """

    def __init__(self, edges: Edges, num_nodes: int, chunk: int) -> None:
        self._num_nodes = num_nodes
        self.chunk: int = chunk
        if isinstance(edges, BaseData):  # is callable, like a function
            raise BadGraph(
                f"edges is a {type(edges).__name__}; give its edge_index, of several types of "
                "edges all in one array with the number of the type as the third row"
            )
        if callable(edges):
            self._pieces = cast(EdgeFunction, edges)
            return
        array = array_of(edges, "edges")
        check_form(array, (2, 3), "edges")
        self._pieces: EdgeFunction = lambda: [array]

    def __iter__(self) -> Iterator[IntArray]:
        """Yields ``[2 or 3, n]`` int64, n up to ``chunk``: source, destination, relation."""
        start = 0
        for values in self._pieces():
            piece = array_of(values, "edges")
            check_form(piece, (2, 3), f"edges from number {start} on" if start else "edges")
            # Also once without edges: the number of rows says whether there are relations.
            for low in range(0, max(1, piece.shape[1]), self.chunk):
                rows = np.ascontiguousarray(piece[:, low : low + self.chunk], dtype=np.int64)
                check_edges(rows, self._num_nodes, first=start + low)
                if len(rows) == 3 and rows[2].max(initial=0) >= MOST_RELATIONS:
                    edge = int(rows[2].argmax())
                    raise BadGraph(
                        f"edge {start + low + edge} has relation {rows[2, edge]}, and there is "
                        f"room for {MOST_RELATIONS:,}: number relations from 0 on, such as by "
                        "np.unique(relations, return_inverse=True)"
                    )
                yield rows
            start += piece.shape[1]


def sort_edges(
    source: EdgeSource,
    new_ids: NDArray[np.integer],
    size: int,
    folder: Path,
    progress: Progress,
) -> tuple[IntArray, int, int]:
    """Writes ``folder/edges.bin``, in the dtype of the new node numbers.

    Args:
        source: the edges with the caller's node numbers; there are a few copies of a chunk of them.
        new_ids: ``[N]``; the new number of each node.
        size: nodes per partition.
        folder: an empty folder.

    Returns:
        Where each cell begins, ``[p * p + 1]`` int64, in edges; the columns of a row; and the
        number of relations (0 without relations).
    """
    counts, columns, relations = _spill(source, new_ids, size, folder, progress)
    p, dtype, done = len(counts), new_ids.dtype, 0
    offsets = np.concatenate([[0], np.cumsum(counts.ravel())])
    row_bytes, at_once = columns * dtype.itemsize, source.chunk * columns
    with (folder / "edges.bin").open("wb") as file:
        file.truncate(int(offsets[-1]) * row_bytes)
        for partition in range(p):
            spill = folder / f"spill-{partition}"
            if not spill.exists():
                continue
            positions = offsets[partition * p : (partition + 1) * p].copy()
            with spill.open("rb") as rows_file:
                while (flat := np.fromfile(rows_file, dtype=dtype, count=at_once)).size:
                    rows = flat.reshape(-1, columns)
                    for cell, run in _runs(rows, rows[:, -1] // size, p):
                        file.seek(int(positions[cell]) * row_bytes)
                        file.write(run.data)
                        positions[cell] += len(run)
                    done += len(rows)
                    progress("place", done)
            spill.unlink()
        file.flush()
        os.fsync(file.fileno())
    return offsets, columns, relations


def _spill(
    source: EdgeSource,
    new_ids: NDArray[np.integer],
    size: int,
    folder: Path,
    progress: Progress,
) -> tuple[IntArray, int, int]:
    """Appends each edge to the file of its source partition.

    Returns the edges of each cell, ``[p, p]``; the columns of a row; and the number of relations.
    """
    p, columns, relations, done = -(-len(new_ids) // size), 2, 0, 0
    counts = np.zeros((p, p), np.int64)
    for rows in source:
        if done and len(rows) != columns:
            raise BadGraph(
                f"edges up to {done} have {how_many(columns, 'row')}, later ones {len(rows)}: give "
                "all of them with relations, or none"
            )
        columns = len(rows)
        written = np.empty((rows.shape[1], columns), new_ids.dtype)
        written[:, 0] = new_ids[rows[0]]
        written[:, -1] = new_ids[rows[1]]
        if columns == 3:
            written[:, 1] = rows[2]
            relations = max(relations, int(rows[2].max(initial=-1)) + 1)
        partitions = written[:, 0] // size
        cells = partitions.astype(np.int64) * p + written[:, -1] // size
        counts += np.bincount(cells, minlength=p * p).reshape(p, p)
        for partition, run in _runs(written, partitions, p):
            with (folder / f"spill-{partition}").open("ab") as file:
                # Not tofile, whose error for a full disk only gives the number of items written.
                file.write(run.data)
        done += rows.shape[1]
        progress("count", done)
    return counts, columns, relations


def _runs(
    rows: NDArray[Any], keys: NDArray[Any], num_keys: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yields each key that occurs, ascending, and its rows in their order."""
    order, starts = sort_by_key(keys, num_keys)
    ordered = rows[order]
    for key in np.flatnonzero(np.diff(starts)).tolist():
        yield key, ordered[starts[key] : starts[key + 1]]
