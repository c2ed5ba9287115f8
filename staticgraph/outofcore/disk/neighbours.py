"""The resident part of a graph as row pointers, for sampling.

Rows are places in the buffer, not nodes of the whole graph; a row without a resident node has no
neighbours. With direction ``both``, the sources of a row's incoming edges and the destinations of
its outgoing edges are kept separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop

IntArray = NDArray[np.int64]
Direction = Literal["in", "out", "both"]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Neighbours by row.

    Attributes:
        pointers: one ``[rows + 1]`` per direction (incoming first).
        indices: one ``[edges]`` per direction, int32 rows.
    """

    pointers: tuple[IntArray, ...]
    indices: tuple[NDArray[np.int32], ...]

    @classmethod
    def of(
        cls, source: NDArray[Any], destination: NDArray[Any], rows: int, direction: Direction = "in"
    ) -> Neighbours:
        """Groups edges, given as rows ``[e]`` and ``[e]``, by row; linear time, input order kept.

        Raises:
            ValueError: if the direction is unknown.
        """
        ways = {
            "in": ((destination, source),),
            "out": ((source, destination),),
            "both": ((destination, source), (source, destination)),
        }
        if direction not in ways:
            raise ValueError(f"direction={direction!r}; choose one of {', '.join(ways)}")
        pointers, indices = [], []
        for keys, values in ways[direction]:
            pointer = np.zeros(rows + 1, np.int64)
            ordered = np.empty(len(keys), np.int32)
            _group(np.ascontiguousarray(keys), np.ascontiguousarray(values), pointer, ordered)
            pointers.append(pointer)
            indices.append(ordered)
        return cls(tuple(pointers), tuple(indices))

    @property
    def rows(self) -> int:
        """Number of rows of the buffer."""
        return len(self.pointers[0]) - 1

    def degrees(self, *, loops: bool = True) -> IntArray:
        """Returns ``[rows]`` degrees over all directions; without self-loops if not ``loops``."""
        total = np.zeros(self.rows, np.int64)
        for pointer, neighbours in zip(self.pointers, self.indices, strict=True):
            total += np.diff(pointer)
            if not loops:
                _without_loops(pointer, neighbours, total)
        return total


@loop
def _group(keys, values, pointers, ordered):
    for e in range(len(keys)):
        pointers[keys[e] + 1] += 1
    for v in range(len(pointers) - 1):
        pointers[v + 1] += pointers[v]
    at = pointers[:-1].copy()
    for e in range(len(keys)):
        ordered[at[keys[e]]] = values[e]
        at[keys[e]] += 1


@loop
def _without_loops(pointers, indices, total):
    for v in range(len(total)):
        for e in range(pointers[v], pointers[v + 1]):
            total[v] -= indices[e] == v
