"""A graph read back from a store, as PyG's ``HeteroData``, or as ``Data`` that keeps its rules.

``__inc__`` and ``__cat_dim__`` belong to a user's class, which a store does not keep. It keeps what
they said, so a graph that comes out of it is batched by PyG as the one that went in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from staticgraph.schema import Field, Schema
from staticgraph.store.indices import counted


class RuledData(Data):
    """``Data`` with the rules of a schema in place of its own, for the fields that have some."""

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        rules = self.__dict__.get("_rules", {})
        return rules[key][0] if key in rules else super().__cat_dim__(key, value, *args, **kwargs)

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        rules = self.__dict__.get("_rules", {})
        return rules[key][1] if key in rules else super().__inc__(key, value, *args, **kwargs)


def assembled(schema: Schema, values: dict[str, Any], rows: Mapping[str, int]) -> Data:
    """One graph, given its tensors and how many rows it has of each level."""
    plain = all(not field.is_index and field.cat_dim == 0 for field in schema)
    if plain and not any(
        "index" in f.name or "batch" in f.name or f.name == "face" for f in schema
    ):
        return Data(num_nodes=rows["node"], **values)
    data = RuledData(num_nodes=rows["node"], **values)
    rules = {field.name: (field.cat_dim, _increment(field, rows)) for field in schema}
    vars(data)["_rules"] = rules  # beside PyG's storage, not in it
    return data


def assembled_typed(schema: Schema, values: Mapping[str, Any], rows: Mapping[str, int]) -> Any:
    """One graph as ``HeteroData``, given its tensors and how many rows it has of each type."""
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
    """What ``__inc__`` said: one number, or one for each scalar of a row."""
    if not field.counts:
        return 0
    known = {"": 0, "graph": 1, **rows}
    if len(field.counts) == 1:
        return known[field.counts[0]]
    steps = torch.zeros(field.width, dtype=torch.int64)
    for place, level in counted(field):
        steps[place] = known[level]
    return steps.view(field.physical(1))
