"""Attributes of a batch that have no array of their own and follow from other attributes.

If nodes have types: ``x_dict``, ``edge_index_dict``, ``num_nodes_dict``. Otherwise ``x_batch`` and
``x_ptr`` of a field ``x``, as with PyG's ``follow_batch``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.typed_views import by_type, rows_by_type
from staticgraph.batches.slots.batch_arrays import BatchArrays
from staticgraph.schema import AXIS_ARRAYS, DICT_SUFFIX, EDGE_INDEX, Field


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
    field, _, part = name.rpartition("_")
    if part in AXIS_ARRAYS and field in schema:
        return followed(batch, schema[field], part)
    return None
