"""Attributes of a batch that have no array of their own and follow from other attributes.

If nodes have types: ``x_dict``, ``edge_index_dict``, ``num_nodes_dict``. Otherwise ``x_batch`` and
``x_ptr`` of a field ``x``, as with PyG's ``follow_batch``.
"""

from __future__ import annotations

from typing import Any

from staticgraph.batches.batch.follow_batch import followed
from staticgraph.batches.batch.typed_views import by_type, rows_by_type
from staticgraph.batches.slots.batch_arrays import BatchArrays
from staticgraph.schema import AXIS_ARRAYS, DICT_SUFFIX


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
