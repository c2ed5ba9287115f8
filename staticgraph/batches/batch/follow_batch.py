"""The graph of each row of a field, and where each graph's rows begin: PyG's ``follow_batch``.

For nodes and axes a batch has both as arrays; for edges and for fields of graphs they are computed
from its arrays, by operations of fixed shape.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.batches.slots.batch_arrays import BatchArrays
from staticgraph.schema import EDGE_INDEX, Field


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
