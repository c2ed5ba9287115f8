"""Reads a caller's edges in checked chunks, never all at once.

An edge is a column of int64: source, destination, and its relation if there are relations. Each
pass reads the source front to back, so it may be a function that generates the edges on the fly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.outofcore.disk.array_files import open_array
from staticgraph.text.how_many import how_many

IntArray = NDArray[np.int64]
EdgeFunction = Callable[[], Iterable[NDArray[Any]]]
# Relations are written in the dtype of node numbers, which is int32 below 2**31 nodes.
MOST_RELATIONS = 2**31 - 1
Edges = ArrayLike | str | Path | EdgeFunction


class EdgeSource:
    """Edges in chunks, front to back.

    Args:
        edges: ``[2, E]`` or ``[3, E]`` integers (source, destination, relation), the path of such
            an ``.npy`` file, which is memory-mapped, or a function that returns an iterator over
            such arrays. Anything that NumPy can convert is accepted as an array, such as a host
            tensor or lists.
        relations: ``[E]`` integers, if the edges are an array ``[2, E]``.
        num_nodes: N; every endpoint is below it.
        chunk: edges in memory at once.

    Raises (while iterating):
        BadGraph: if an endpoint is outside ``[0, N)``, a relation is negative or at least
            ``2**31 - 1``, or an array has another form.
    """

    def __init__(
        self, edges: Edges, num_nodes: int, chunk: int, relations: ArrayLike | None = None
    ) -> None:
        if chunk < 1:
            raise BadGraph(f"chunk={chunk}; give at least 1 edge")
        self._make: EdgeFunction | None = None
        self._relations = None if relations is None else _array(relations, "relations")
        self._num_nodes = num_nodes
        self._chunk = chunk
        # Checked by name, since this module does not need torch. PyG's Data is callable, like a
        # function.
        kind: type = type(edges)
        if any(base.__name__ == "BaseData" for base in kind.__mro__):
            raise BadGraph(
                f"edges is a {kind.__name__}; give its edge_index, of several types of "
                "edges all in one array with the number of the type as the third row"
            )
        if callable(edges):
            self._make = cast(EdgeFunction, edges)
            if relations is not None:
                raise BadGraph("edges from a function carry their relation as a third row")
            return
        given = isinstance(edges, str | Path)
        self._edges: NDArray[Any] = open_array(edges) if given else _array(edges, "edges")
        self._check_relations()

    def __iter__(self) -> Iterator[IntArray]:
        """Yields ``[2 or 3, n]`` int64, n up to ``chunk``: source, destination, relation."""
        start = 0
        for piece in self._pieces():
            _check_form(piece, start)
            # Also once without edges: the number of rows says whether there are relations.
            for low in range(0, max(1, piece.shape[1]), self._chunk):
                rows = np.ascontiguousarray(piece[:, low : low + self._chunk], dtype=np.int64)
                self._check_values(rows, start + low)
                yield rows
            start += piece.shape[1]

    def _pieces(self) -> Iterator[NDArray[Any]]:
        if self._make is not None:
            for piece in self._make():
                yield _array(piece, "edges")
        elif self._relations is None:
            yield self._edges
        else:
            for low in range(0, max(1, self._edges.shape[1]), self._chunk):
                span = slice(low, low + self._chunk)
                # Both to int64 first: NumPy would promote int64 with uint64 to float64.
                ends, names = self._edges[:, span], self._relations[None, span]
                yield np.concatenate([ends.astype(np.int64), names.astype(np.int64)])

    def _check_relations(self) -> None:
        _check_form(self._edges, 0)
        names = self._relations
        if names is not None and (
            len(self._edges) != 2
            or names.shape != self._edges.shape[1:]
            or names.dtype.kind not in "biu"
        ):
            raise BadGraph(
                f"relations has shape {names.shape} and dtype {names.dtype} for edges of shape "
                f"{self._edges.shape}; give edges [2, E] and relations [E], integers counted from 0"
            )

    def _check_values(self, rows: IntArray, start: int) -> None:
        ends = rows[:2]
        if ends.size and not (ends.min() >= 0 and ends.max() < self._num_nodes):
            edge = int(((ends < 0) | (ends >= self._num_nodes)).any(axis=0).argmax())
            raise BadGraph(
                f"edge {start + edge} joins {ends[0, edge]} -> {ends[1, edge]}, but there are "
                f"{how_many(self._num_nodes, 'node')}: fix the edge or raise num_nodes"
            )
        if len(rows) == 3 and rows.size and rows[2].min() < 0:
            edge = int(rows[2].argmin())
            raise BadGraph(f"edge {start + edge} has relation {rows[2, edge]}; count from 0")
        if len(rows) == 3 and rows.size and rows[2].max() >= MOST_RELATIONS:
            edge = int(rows[2].argmax())
            raise BadGraph(
                f"edge {start + edge} has relation {rows[2, edge]}, and there is room for "
                f"{MOST_RELATIONS:,}: number relations from 0 on, such as by "
                "np.unique(relations, return_inverse=True)"
            )


def _array(given: ArrayLike, name: str) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise BadGraph(f"{name} is not an array of numbers ({error})") from error


def _check_form(edges: NDArray[Any], start: int) -> None:
    shape, dtype = np.shape(edges), np.asarray(edges).dtype
    if len(shape) != 2 or shape[0] not in (2, 3) or dtype.kind not in "iu":
        raise BadGraph(
            f"edges from number {start} on have shape {shape} and dtype {dtype}; give integers "
            "[2, E], or [3, E] with relations"
        )
