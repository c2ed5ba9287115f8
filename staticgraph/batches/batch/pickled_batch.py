"""What is written of a batch when it is saved, pickled or deeply copied.

That is its tensors, in their own memory, and nothing of its slot. The arrays of a slot are views of
one buffer in many dtypes, which ``torch.save`` refuses, and the slot belongs to the loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.batch_arrays import BatchArrays
from staticgraph.batches.slots.batch_memory import note
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.objects import HostObjects

_INDICES = ("edge_index", "batch")


def state_of(
    batch: BatchArrays,
    real: RealCounts | None,
    objects: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns what is needed to rebuild the batch with its own memory.

    Args:
        batch: its tensors are copied.
        real: its real counts, if known.
        objects: its strings and objects per graph, and where its edges were before sorting.
        extra: the attributes that were set on it.

    Raises:
        StaleBatch: its slot was given back.
    """
    whole, tensors = whole_of(batch), batch.tensors().items()
    alone = {name: _alone(tensor) for name, tensor in tensors} if whole is None else whole.clone()
    return {
        "layout": batch.layout,
        "tensors": alone,
        "real": real,
        "objects": HostObjects(objects, moved_edges(batch.layout.schema, objects)),
        "extra": {
            name: _alone(value) if type(value) is Tensor else value for name, value in extra.items()
        },
    }


def moved_edges(schema: Schema, objects: Mapping[str, Any]) -> dict[str, IntArray]:
    """Returns edge level -> which row each edge was before sorting, where any was moved."""
    places = getattr(objects, "places", None)
    if places is None:
        return {}
    levels = [axis.name for axis in schema.edge_axes] or ["edge"]
    return {level: place for level in levels if (place := places(level)) is not None}


def whole_of(batch: BatchArrays) -> Tensor | None:
    """Returns the buffer that all tensors of a batch are views of, and nothing else is; None if a
    tensor was replaced, needs a gradient, or stands in a slot of several buckets."""
    layout, tensors = batch.layout, batch.tensors()
    buffer = next(iter(tensors.values()))._base
    if (
        buffer is None
        or (buffer.dtype, buffer.dim(), buffer.numel()) != (torch.uint8, 1, layout.nbytes)
        or [entry.name for entry in layout.entries] != list(tensors)
        or any(each._base is not buffer or each.requires_grad for each in tensors.values())
    ):
        return None
    return buffer


def note_indices(batch: BatchArrays) -> None:
    """Notes the memory of a copy's index arrays as a batch's.

    See :func:`staticgraph.batches.slots.batch_memory.note`.
    """
    for name, tensor in batch.tensors().items():
        if name in _INDICES or name.endswith(".edge_index"):
            note(tensor, batch.layout.lengths)


def _alone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
