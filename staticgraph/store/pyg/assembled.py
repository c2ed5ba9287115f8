"""Reads a graph back from a store, as PyG's ``HeteroData``, or as ``Data`` that keeps its rules.

``__inc__`` and ``__cat_dim__`` belong to a user's class, which a store does not keep. It keeps what
they returned, so PyG batches a graph that is read back exactly like the one that went in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from staticgraph.schema import Field, Schema
from staticgraph.store.columns import Array
from staticgraph.store.indices import as_tensor_shape, counted, with_first_numbers


class RuledData(Data):
    """``Data`` whose ``__cat_dim__`` and ``__inc__`` follow a schema, for the fields with rules."""

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        rules = self.__dict__.get("_rules", {})
        return rules[key][0] if key in rules else super().__cat_dim__(key, value, *args, **kwargs)

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        rules = self.__dict__.get("_rules", {})
        return rules[key][1] if key in rules else super().__inc__(key, value, *args, **kwargs)


def in_first_order(
    schema: Schema,
    columns: Mapping[str, Array],
    rows: Mapping[str, int],
    pair: Array | None,
    places: Mapping[str, Array | None],
) -> Data | HeteroData:
    """Assembles one graph as it went into a store.

    Args:
        schema: the store's schema.
        columns: field -> the graph's rows of it, as stored.
        rows: level -> the graph's number of rows.
        pair: ``[2, e]`` int64 sources and destinations, sorted; None if edges are fields.
        places: edge level -> original position of each edge; None if the edges were not moved.
    """
    values: dict[str, Any] = {}
    if pair is not None:
        place = places["edge"]
        values["edge_index"] = torch.from_numpy(pair if place is None else pair[:, _back(place)])
    for field in schema:
        value = columns[field.name].astype(field.dtype)
        for level, place in places.items():
            if place is not None:
                value = with_first_numbers(value, field, level, place)
        if (place := places.get(field.level)) is not None:
            value = value[_back(place)]
        values[field.name] = torch.from_numpy(as_tensor_shape(value, field))
    return (assembled_typed if schema.hetero else assembled)(schema, values, rows)


def _back(place: Array) -> Array:
    """Returns the permutation that restores the original order of sorted edges."""
    return np.argsort(place)


def assembled(schema: Schema, values: dict[str, Any], rows: Mapping[str, int]) -> Data:
    """Assembles one graph from its tensors and its number of rows on each level."""
    plain = all(not field.is_index and field.cat_dim == 0 for field in schema)
    if plain and not any(
        "index" in f.name or "batch" in f.name or f.name == "face" for f in schema
    ):
        return Data(num_nodes=rows["node"], **values)
    data = RuledData(num_nodes=rows["node"], **values)
    rules = {field.name: (field.cat_dim, _increment(field, rows)) for field in schema}
    vars(data)["_rules"] = rules  # outside PyG's storage
    return data


def assembled_typed(schema: Schema, values: Mapping[str, Any], rows: Mapping[str, int]) -> Any:
    """Assembles one ``HeteroData`` from its tensors and its number of rows of each type."""
    data = HeteroData()
    types = schema.node_axes + schema.edge_axes
    for axis in schema.node_axes:
        data[axis.key].num_nodes = rows[axis.name]
    for name, value in values.items():
        owners = [axis for axis in types if name.startswith(f"{axis.name}.")]
        owner = max(owners, key=lambda axis: len(axis.name), default=None)
        if owner is None:
            setattr(data, name, value)
        else:
            setattr(data[owner.key], name.removeprefix(f"{owner.name}."), value)
    return data


def _increment(field: Field, rows: Mapping[str, int]) -> Any:
    """Returns the value that ``__inc__`` returned: one number, or one per scalar of a row."""
    if not field.counts:
        return 0
    counts = {"": 0, "graph": 1, **rows}
    if len(field.counts) == 1:
        return counts[field.counts[0]]
    steps = torch.zeros(field.width, dtype=torch.int64)
    for place, level in counted(field):
        steps[place] = counts[level]
    return steps.view(field.physical(1))
