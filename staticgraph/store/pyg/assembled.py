"""A graph of a store, as PyG's ``HeteroData``, or as ``Data`` that keeps its rules.

``__inc__`` and ``__cat_dim__`` belong to a user's class, which a store does not keep. It keeps what
they returned, so PyG batches a graph that is read back exactly like the one that went in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from staticgraph.schema import Field, Schema
from staticgraph.store.indices import counted
from staticgraph.store.pyg.levels import axis_of


class RuledData(Data):
    """``Data`` whose ``__cat_dim__`` and ``__inc__`` follow a schema, for the fields with rules."""

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        rules = self.__dict__.get("_rules", {})
        return rules[key][0] if key in rules else super().__cat_dim__(key, value, *args, **kwargs)

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        rules = self.__dict__.get("_rules", {})
        return rules[key][1] if key in rules else super().__inc__(key, value, *args, **kwargs)


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
        owner = axis_of(name, types)
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
