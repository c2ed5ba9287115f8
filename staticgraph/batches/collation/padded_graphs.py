"""Graphs padded into newly allocated memory on the CPU, without a loader's slots."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.collation.collate import fill
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_columns import GraphColumns


class Padded(NamedTuple):
    """The filled arrays of a bucket.

    Attributes:
        buffer: ``[nbytes]`` uint8, which the tensors are views of.
        tensors: by name, in the layout's order.
        real: how many of their rows are real.
    """

    buffer: Tensor
    tensors: dict[str, Tensor]
    real: RealCounts


def padded(store: GraphColumns, graphs: IntArray, layout: SlotLayout) -> Padded:
    """Pads some graphs of a store to a bucket's shapes.

    Args:
        store: the graphs.
        graphs: ``[g]`` int64, which graphs; empty gives padding alone.
        layout: the bucket's layout.

    Raises:
        GraphTooLarge: together they exceed the capacity.
    """
    buffer = torch.empty(layout.nbytes, dtype=torch.uint8)
    tensors = layout.tensors(buffer)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    return Padded(buffer, tensors, fill(store, graphs, layout, arrays))
