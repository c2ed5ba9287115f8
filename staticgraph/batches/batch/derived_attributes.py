"""Attributes of a batch that have no array of their own and follow from other attributes.

Without types of nodes these are ``x_batch`` and ``x_ptr`` of a field ``x``, as with PyG's
``follow_batch``. With types they are what PyG's ``HeteroData`` batch has: ``batch["atom"].x``,
``batch["atom", "bond", "atom"].edge_index``, ``batch.x_dict``, ``batch.edge_index_dict`` and
``batch.batch_dict``, views of the batch's own tensors, which it stores under plain names
(``atom.x``). Nothing is copied; masks are available by type as well.

Row pointers follow from the edges, and fused loops rely on that: if edges are replaced, pointers to
the previous ones would silently give wrong sums. So they are dropped, and made again where they are
needed (:mod:`staticgraph.batches.batch.row_pointers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.batch_arrays import BatchArrays
from staticgraph.schema import AXIS_ARRAYS, DICT_SUFFIX, EDGE_INDEX, POINTERS, Axis, Field, Schema


def axis_of(schema: Schema, key: Any) -> Axis | None:
    """Returns the axis of a node type or an edge type, or None.

    An edge type is a triple, or source and destination if a single relation joins them.
    """
    type_of_rows = key if isinstance(key, tuple) else (key,)
    exact = [axis for axis in schema.axes if axis.type == type_of_rows]
    if not exact and len(type_of_rows) == 2:
        exact = [axis for axis in schema.edge_axes if (axis.type[0], axis.type[2]) == type_of_rows]
    if not exact and len(type_of_rows) == 1:  # a relation's name, as HeteroData takes it
        exact = [axis for axis in schema.edge_axes if axis.type[1] == type_of_rows[0]]
    return exact[0] if len(exact) == 1 else None


def array_name(axis: Axis, name: str) -> str:
    """Returns the batch's name for the array ``name`` of a type."""
    return f"{axis.name}_{name}" if name in AXIS_ARRAYS else f"{axis.name}.{name}"


def array_of(batch: BatchArrays, axis: Axis, name: str) -> Any:
    """Returns the array ``name`` of a type, or what a model has set under it; None if neither."""
    key = array_name(axis, name)
    value = batch.tensors().get(key)
    return batch._extra.get(key) if value is None else value


def by_type(batch: BatchArrays, name: str) -> dict[Any, Tensor] | None:
    """Returns ``{type: tensor}`` for every type that has such a field; None if none has."""
    schema = batch.layout.schema
    axes = schema.node_axes if name in ("batch", "ptr") else schema.axes
    of_types = {axis.key: array_of(batch, axis, name) for axis in axes}
    of_types = {key: value for key, value in of_types.items() if value is not None}
    return of_types or None


def rows_by_type(batch: BatchArrays) -> dict[Any, int]:
    """Returns ``{node type: physical rows}``, PyG's ``num_nodes_dict``."""
    schema = batch.layout.schema
    return {axis.key: batch.capacity.rows(axis.name) for axis in schema.node_axes}


class TypeView(MutableMapping[str, Any]):
    """The fields of one type of a batch, as in PyG's storages; setting one sets the batch's."""

    __slots__ = ("_axis", "_batch")

    def __init__(self, batch: Any, axis: Axis) -> None:
        object.__setattr__(self, "_batch", batch)
        object.__setattr__(self, "_axis", axis)

    def __copy__(self) -> TypeView:
        """A view of a copy of the batch, so that setting its fields leaves the batch as it is."""
        return type(self)(copy(self._batch), self._axis)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._batch, self._axis)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("num_nodes", "num_edges"):
            return self._rows()
        if name in ("num_features", "num_node_features", "num_edge_features"):
            return getattr(self._batch, f"num_{self._axis.kind}_features")[self._axis.key]
        value = self._array(name)
        if value is None:
            raise AttributeError(f"{self._axis.key!r} has no {name!r}; it has {', '.join(self)}")
        return value

    def _rows(self) -> int:
        return self._batch.capacity.rows(self._axis.name)

    def _array(self, name: str) -> Any:
        return array_of(self._batch, self._axis, name)

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(*error.args) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("num_nodes", "num_edges"):
            raise AttributeError(
                f"{name!r} of {self._axis.key!r} follows from the bucket and cannot be set: choose "
                "another name"
            )
        setattr(self._batch, array_name(self._axis, name), value)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._batch, array_name(self._axis, name))

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __iter__(self) -> Iterator[str]:
        """The names of the type's fields, of its masks, and of what was set."""
        start, names = f"{self._axis.name}.", self._batch.keys()
        fields = [name.removeprefix(start) for name in names if name.startswith(start)]
        return iter([*fields, *AXIS_ARRAYS])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def to_dict(self) -> dict[str, Any]:
        """Returns ``{name: value}`` for every field of the type."""
        return dict(self)

    def __repr__(self) -> str:
        return f"{self._axis.key!r}: {', '.join(self)}"


def followed(batch: BatchArrays, field: Field, part: str) -> Tensor | None:
    """Returns a field's ``x_batch [rows]``, ``x_ptr [G + 1]`` (int64) or ``x_mask [rows]``.

    Args:
        batch: with one kind of nodes.
        field: of any level.
        part: ``batch``, ``ptr`` or ``mask``; None is returned for a mask that the batch has under
            another name.
    """
    tensors, graphs = batch.tensors(), batch.capacity.graphs
    if field.level not in ("node", "edge", "graph"):
        return tensors.get(f"{field.level}_{part}")
    if part == "mask":
        return None
    if field.level == "node":
        return tensors[part]
    numbers = torch.arange(graphs + 1, device=tensors["graph_ids"].device)
    if field.level == "graph":
        return numbers * field.rows if part == "ptr" else numbers[:-1].repeat_interleave(field.rows)
    schema = batch.layout.schema
    ends = schema[EDGE_INDEX].counts[1] if schema.two_sided else "node"
    owner = tensors["batch" if ends == "node" else f"{ends}_batch"][tensors[EDGE_INDEX][1]]
    return owner if part == "batch" else torch.searchsorted(owner, numbers)


def derived(batch: BatchArrays, name: str) -> Any:
    """Returns the derived attribute of a name; None if this batch has no such attribute."""
    schema = batch.layout.schema
    if schema.hetero:
        if name == "num_nodes_dict":
            return rows_by_type(batch)
        if name.endswith(DICT_SUFFIX):
            return by_type(batch, name.removesuffix(DICT_SUFFIX))
        return None
    if name == "size":  # a method of PyG's
        return lambda dim=None: (batch.num_nodes,) * 2 if dim is None else batch.num_nodes
    field, _, part = name.rpartition("_")
    if part in AXIS_ARRAYS and field in schema:
        return followed(batch, schema[field], part)
    return None


def exchanged(
    tensors: Mapping[str, Tensor], replacements: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns ``tensors`` updated with the ``replacements`` ones.

    The row pointers of replaced edges are dropped, unless they are given too.
    """
    edges = tensors.get(EDGE_INDEX)
    exchanged_tensors = {**tensors, **replacements}
    if replacements.get(EDGE_INDEX, edges) is not edges:
        for name in POINTERS:
            if name not in replacements:
                exchanged_tensors.pop(name, None)
    return exchanged_tensors
