"""Strings and other small objects per graph, which stay on the host.

A SMILES string, an identifier or a list of atom names does not fit in a tensor; a PyG batch holds
them as a list, one entry per graph. Here all objects of one name are a column of JSON text with
offsets, so that a store keeps them in its folder, memory-mapped, and nothing is unpickled. Objects
that do not survive a round trip through JSON cannot be stored, except that tuples come back as
lists. No step computes with objects, so they are not part of a schema, a plan or a compiled step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array


class ObjectColumn(NamedTuple):
    """A column of objects, one per graph.

    Attributes:
        text: ``[bytes]`` uint8, the objects as JSON in UTF-8, concatenated.
        ends: ``[n + 1]`` int64, where each object begins, and where the last one ends.
    """

    text: Array
    ends: IntArray

    @classmethod
    def of(cls, values: Iterable[Any]) -> ObjectColumn | None:
        """Builds a column, one object per graph; None if JSON cannot represent one exactly."""
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
        """Returns the object of one graph."""
        return json.loads(self.text[int(self.ends[graph]) : int(self.ends[graph + 1])].tobytes())

    @property
    def nbytes(self) -> int:
        """Bytes of text and offsets."""
        return self.text.nbytes + self.ends.nbytes


class ObjectsOf(Mapping[str, list[Any]]):
    """What the host knows of some graphs, read lazily: their objects by name, each a list in the
    graphs' order, and where their edges were before sorting.

    Args:
        store: a :class:`staticgraph.store.graph_columns.GraphColumns`.
        graphs: indices of graphs in it.
    """

    __slots__ = ("_graphs", "_store")

    def __init__(self, store: Any, graphs: IntArray) -> None:
        self._store, self._graphs = store, graphs

    def places(self, level: str) -> IntArray | None:
        """Returns the place that each edge of a level had before sorting; None if none moved."""
        return self._store.places_of(self._graphs, level)

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self:
            raise KeyError(name)
        parts = (self._store._part_of(graph) for graph in self._graphs.tolist())
        return [part.objects[name].at(place) for part, place in parts]

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.objects)

    def __len__(self) -> int:
        return len(self._store.objects)

    def __contains__(self, name: object) -> bool:
        return name in self._store.objects


class HostObjects(dict[str, list[Any]]):
    """The same, read already: objects by name, and edge level -> which row each edge was before
    sorting; levels of which none was moved are left out."""

    def __init__(
        self,
        objects: Mapping[str, list[Any]] | None = None,
        moved: Mapping[str, IntArray] | None = None,
    ) -> None:
        super().__init__(objects or {})
        self.moved: dict[str, IntArray] = dict(moved or {})

    def places(self, level: str) -> IntArray | None:
        """Returns the place that each edge of a level had before sorting; None if none moved."""
        return self.moved.get(level)


def _without_tuples(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_tuples(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_tuples(item) for key, item in value.items()}
    return value
