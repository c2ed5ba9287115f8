"""What a batch with typed nodes and edges offers of PyG's ``HeteroData`` batch.

``batch["atom"].x``, ``batch["atom", "bond", "atom"].edge_index``, ``batch.x_dict``,
``batch.edge_index_dict`` and ``batch.batch_dict`` are views of the batch's own tensors, which it
stores under plain names (``atom.x``). Nothing is copied; masks are available by type as well.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from staticgraph.batches.slots.batch_arrays import BatchArrays
from staticgraph.schema import AXIS_ARRAYS, Axis, Schema


def axis_of(schema: Schema, key: Any) -> Axis | None:
    """Returns the axis of a node type or an edge type, or None.

    An edge type is a triple, or source and destination if a single relation joins them.
    """
    wanted = key if isinstance(key, tuple) else (key,)
    exact = [axis for axis in schema.axes if axis.type == wanted]
    if not exact and len(wanted) == 2:
        exact = [axis for axis in schema.edge_axes if (axis.type[0], axis.type[2]) == wanted]
    if not exact and len(wanted) == 1:  # a relation's name, as HeteroData takes it
        exact = [axis for axis in schema.edge_axes if axis.type[1] == wanted[0]]
    return exact[0] if len(exact) == 1 else None


def array_name(axis: Axis, name: str) -> str:
    """Returns the batch's name for the array ``name`` of a type."""
    return f"{axis.name}_{name}" if name in AXIS_ARRAYS else f"{axis.name}.{name}"


def by_type(batch: BatchArrays, name: str) -> dict[Any, Tensor] | None:
    """Returns ``{type: tensor}`` for every type that has such a field; None if none has."""
    schema, tensors = batch.layout.schema, batch.tensors()
    axes = schema.node_axes if name in ("batch", "ptr") else schema.axes
    found = {axis.key: tensors.get(array_name(axis, name)) for axis in axes}
    found = {key: value for key, value in found.items() if value is not None}
    return found or None


def rows_by_type(batch: BatchArrays) -> dict[Any, int]:
    """Returns ``{node type: physical rows}``, PyG's ``num_nodes_dict``."""
    schema = batch.layout.schema
    return {axis.key: batch.capacity.rows(axis.name) for axis in schema.node_axes}


class TypeView:
    """The fields of one type of a batch, as in PyG's storages."""

    __slots__ = ("_axis", "_batch")

    def __init__(self, batch: BatchArrays, axis: Axis) -> None:
        self._batch = batch
        self._axis = axis

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("num_nodes", "num_edges"):
            return self._batch.capacity.rows(self._axis.name)
        found = self._batch.tensors().get(array_name(self._axis, name))
        if found is None:
            raise AttributeError(
                f"{self._axis.key!r} has no {name!r}; it has {', '.join(self.keys())}"
            )
        return found

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return array_name(self._axis, name) in self._batch.tensors()

    def keys(self) -> list[str]:
        """Returns the names of the type's fields, and of its masks."""
        start = f"{self._axis.name}."
        fields = [f.name.removeprefix(start) for f in self._batch.layout.schema]
        own = [f.name.startswith(start) for f in self._batch.layout.schema]
        return [name for name, mine in zip(fields, own, strict=True) if mine] + list(AXIS_ARRAYS)

    def __repr__(self) -> str:
        return f"{self._axis.key!r}: {', '.join(self.keys())}"
