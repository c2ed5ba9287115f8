"""Strings and other small objects per graph, which stay on the host.

A SMILES string, an identifier or a list of atom names does not fit in a tensor; a PyG batch holds
them as a list, one entry per graph. Here all objects of one name are a column of JSON text with
offsets, so that a store keeps them in its folder, memory-mapped, and nothing is unpickled. Objects
that do not survive a round trip through JSON cannot be stored, except that tuples come back as
lists. No step computes with objects, so they are not part of a schema, a plan or a compiled step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array

V = TypeVar("V")


class ObjectColumn(NamedTuple):
    """A column of objects, one per graph.

    Attributes:
        text: ``[bytes]`` uint8, the objects as JSON in UTF-8, concatenated.
        ends: ``[n + 1]`` int64, where each object begins, and where the last one ends.
    """

    text: Array
    ends: IntArray

    @classmethod
    def from_values(cls, values: Iterable[Any]) -> ObjectColumn | None:
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

    def read_object(self, graph: int) -> Any:
        """Returns the object of one graph."""
        return json.loads(self.text[int(self.ends[graph]) : int(self.ends[graph + 1])].tobytes())


class OnAccess(Mapping[str, V]):
    """A mapping whose values are read when they are accessed."""

    def __init__(self, names: Collection[str], read: Callable[[str], V]) -> None:
        self._names, self._read = names, read

    def __getitem__(self, key: str) -> V:
        if key not in self._names:
            raise KeyError(key)
        return self._read(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        return key in self._names


class ObjectsOf(OnAccess[list[Any]]):
    """What the host knows of some graphs: their objects by name, each a list in the graphs' order,
    and where their edges were before sorting; read from a
    :class:`staticgraph.store.graph_columns.GraphColumns`.
    """

    def __init__(self, store: Any, graphs: IntArray) -> None:
        super().__init__(store.objects, self._read_objects)
        self._store, self._graphs = store, graphs

    def places(self, level: str) -> IntArray | None:
        """Returns the place that each edge of a level had before sorting; None if none moved."""
        return self._store.places_of(self._graphs, level)

    def _read_objects(self, name: str) -> list[Any]:
        parts = map(self._store._part_of, self._graphs.tolist())
        return [part.objects[name].read_object(place) for part, place in parts]


class HostObjects(dict[str, list[Any]]):
    """What :class:`ObjectsOf` reads from a store, in memory: a batch of lists, or of another
    process, has no store.

    Args:
        objects: name -> a list of one object per graph.
        moved: edge level -> ``[rows]``, the place that each edge had before sorting; without the
            levels of which no edge moved.
    """

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
