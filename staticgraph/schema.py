"""What a graph of a data set carries: its fields, their level, shape and dtype.

A batch of fixed shape can be allocated, and a model compiled for it, before a single graph is read:
the schema and a capacity say everything. That is why a plan carries the schema along. Pure data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

Level = Literal["node", "edge", "graph"]
LEVELS: tuple[Level, ...] = ("node", "edge", "graph")

# Names that a batch gives itself; a data set that uses one of them for data of its own is refused.
RESERVED = frozenset(
    {
        "batch",
        "ptr",
        "edge_index",
        "row_ptr",
        "col_ptr",
        "transpose",
        "node_mask",
        "edge_mask",
        "graph_mask",
        "graph_ids",
        "bucket",
        "capacity",
        "num_nodes",
        "num_edges",
        "num_graphs",
        "batch_size",
        "num_real_nodes",
        "num_real_edges",
        "num_real_graphs",
    }
)


@dataclass(frozen=True, slots=True)
class Field:
    """One attribute of every graph, such as ``x`` or ``y``.

    Attributes:
        name: the attribute's name in PyG.
        level: whether a row belongs to a node, an edge or a graph.
        shape: the trailing shape of one row, ``()`` for a vector.
        dtype: the NumPy name of the dtype that a model sees.
        rows: rows a graph; 1 but for graph-level attributes of several rows, which PyG
            concatenates (``[G * rows, *shape]``).
        has_nan: a value is NaN, which in a target means "no label".
    """

    name: str
    level: Level
    shape: tuple[int, ...]
    dtype: str
    rows: int = 1
    has_nan: bool = False

    @property
    def width(self) -> int:
        """Scalars in one row."""
        return int(np.prod(self.shape, dtype=np.int64))

    def describe(self) -> str:
        """``float32 [9] a node``, for error messages and tables."""
        dims = ", ".join(map(str, (self.rows, *self.shape) if self.rows > 1 else self.shape))
        article = "an" if self.level == "edge" else "a"
        return f"{self.dtype} [{dims}] {article} {self.level}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a data set, in order, without those that every batch has."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if len(set(names)) < len(names):
            raise ValueError(f"a field appears twice in {names}")
        taken = sorted(RESERVED & set(names))
        if taken:
            raise ValueError(
                f"{', '.join(map(repr, taken))}: every batch has an attribute of this name; "
                "rename the field, or leave it out with exclude=[...]"
            )

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __contains__(self, name: object) -> bool:
        return any(field.name == name for field in self.fields)

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"no field {name!r}; there are {', '.join(f.name for f in self.fields)}")

    def of_level(self, level: Level) -> tuple[Field, ...]:
        """The fields whose rows are nodes, edges or graphs."""
        return tuple(field for field in self.fields if field.level == level)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"fields": [asdict(field) for field in self.fields]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Schema:
        """What :meth:`to_dict` gave."""
        return cls(
            tuple(Field(**{**field, "shape": tuple(field["shape"])}) for field in values["fields"])
        )
