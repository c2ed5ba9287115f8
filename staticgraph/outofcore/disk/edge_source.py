"""Edges as a caller has them -> chunks of rows, each checked, never all at once.

An edge is a column of int64: source, destination, and its relation where there are relations. The
source is read once, front to back, so it may be a function that generates the edges as they are
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import BadGraph
from staticgraph.outofcore.disk.array_files import open_array
from staticgraph.text.how_many import how_many

IntArray = NDArray[np.int64]
EdgeFunction = Callable[[], Iterable[NDArray[Any]]]
Edges = NDArray[Any] | str | Path | EdgeFunction


class EdgeSource:
    """Rows of edges in chunks, front to back.

    Args:
        edges: ``[2, E]`` or ``[3, E]`` integers (source, destination, relation), the path of such
            an ``.npy`` file, which is memory-mapped, or a function that returns an iterator over
            such arrays.
        relations: ``[E]`` integers where the edges are ``[2, E]`` and an array.
        num_nodes: N; every endpoint is below it.
        chunk: edges in memory at once.

    Raises (while iterating):
        BadGraph: an endpoint outside ``[0, N)``, a negative relation, or an array of another form.
    """

    def __init__(
        self, edges: Edges, num_nodes: int, chunk: int, relations: NDArray[Any] | None = None
    ) -> None:
        self._make: EdgeFunction | None = None
        self._relations = relations
        self._num_nodes = num_nodes
        self._chunk = chunk
        if isinstance(edges, np.ndarray | str | Path):
            loaded = edges if isinstance(edges, np.ndarray) else open_array(edges)
            self._edges: NDArray[Any] = loaded
            self._check_relations()
            return
        self._make = edges
        if relations is not None:
            raise BadGraph("edges from a function carry their relation as a third row")

    def __iter__(self) -> Iterator[IntArray]:
        """``[2 or 3, n]`` int64 with n up to the chunk; rows are source, destination, relation."""
        start = 0
        for piece in self._pieces():
            _check_form(piece, start)
            # Once for no edges, too: the number of rows says whether there are relations.
            for low in range(0, max(1, piece.shape[1]), self._chunk):
                rows = np.ascontiguousarray(piece[:, low : low + self._chunk], dtype=np.int64)
                self._check_values(rows, start + low)
                yield rows
            start += piece.shape[1]

    def _pieces(self) -> Iterator[NDArray[Any]]:
        if self._make is not None:
            for piece in self._make():
                yield np.asarray(piece)
        elif self._relations is None:
            yield self._edges
        else:
            for low in range(0, max(1, self._edges.shape[1]), self._chunk):
                span = slice(low, low + self._chunk)
                yield np.concatenate([self._edges[:, span], self._relations[None, span]])

    def _check_relations(self) -> None:
        _check_form(self._edges, 0)
        if self._relations is not None and (
            len(self._edges) != 2 or np.shape(self._relations) != self._edges.shape[1:]
        ):
            raise BadGraph(
                f"relations has shape {np.shape(self._relations)} beside edges of shape "
                f"{self._edges.shape}; give edges [2, E] and relations [E]"
            )

    def _check_values(self, rows: IntArray, start: int) -> None:
        ends = rows[:2]
        if ends.size and not (ends.min() >= 0 and ends.max() < self._num_nodes):
            edge = int(((ends < 0) | (ends >= self._num_nodes)).any(axis=0).argmax())
            raise BadGraph(
                f"edge {start + edge} joins {ends[0, edge]} -> {ends[1, edge]}, but there are "
                f"{how_many(self._num_nodes, 'node')}: correct the edge or raise num_nodes"
            )
        if len(rows) == 3 and rows.size and rows[2].min() < 0:
            edge = int(rows[2].argmin())
            raise BadGraph(f"edge {start + edge} has relation {rows[2, edge]}; count from 0")


def _check_form(edges: NDArray[Any], start: int) -> None:
    shape, dtype = np.shape(edges), np.asarray(edges).dtype
    if len(shape) != 2 or shape[0] not in (2, 3) or dtype.kind not in "iu":
        raise BadGraph(
            f"edges from number {start} on have shape {shape} and dtype {dtype}; give integers "
            "[2, E], or [3, E] with relations"
        )
