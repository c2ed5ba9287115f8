"""Strings and other small objects of graphs, which stay on the host.

A SMILES string, an identifier, a list of atom names: no tensor holds them, and a batch of PyG has
them as a list, one entry per graph. Here a name's objects are one column of JSON text with offsets,
so that a store keeps them in its folder, mapped, and nothing is unpickled. What JSON cannot give
back as it was is no such column; tuples come back as lists. No step computes with them, so they
are no part of a schema, a plan or a compiled step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array


class ObjectColumn(NamedTuple):
    """One object per graph.

    Attributes:
        text: ``[bytes]`` uint8, JSON in UTF-8, one after the other.
        ends: ``[n + 1]`` int64, where each begins, and where the last ends.
    """

    text: Array
    ends: IntArray

    @classmethod
    def of(cls, values: Iterable[Any]) -> ObjectColumn | None:
        """The column of these objects, one per graph; None where JSON does not give them back."""
        pieces = []
        for value in values:
            plain = _without_tuples(value)
            try:
                piece = json.dumps(plain, ensure_ascii=False).encode()
                if json.loads(piece) != plain:
                    return None
            except (TypeError, ValueError, RecursionError):
                return None
            pieces.append(piece)
        ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(pieces), np.uint8), ends)

    def at(self, graph: int) -> Any:
        """The object of one graph."""
        return json.loads(self.text[int(self.ends[graph]) : int(self.ends[graph + 1])].tobytes())

    @property
    def nbytes(self) -> int:
        """Bytes of text and offsets."""
        return self.text.nbytes + self.ends.nbytes


class ObjectsOf(Mapping[str, list[Any]]):
    """The objects of some graphs by name, each a list in the graphs' order, read when asked for.

    Args:
        columns: of a store.
        graphs: positions in it.
    """

    __slots__ = ("_columns", "_graphs")

    def __init__(self, columns: Mapping[str, ObjectColumn], graphs: Sequence[int] | Array) -> None:
        self._columns = columns
        self._graphs = graphs

    def __getitem__(self, name: str) -> list[Any]:
        column = self._columns[name]
        return [column.at(int(graph)) for graph in self._graphs]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns


def _without_tuples(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_tuples(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_tuples(item) for key, item in value.items()}
    return value
