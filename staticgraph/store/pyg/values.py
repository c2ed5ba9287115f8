"""Converts the values of a PyG graph, of whatever type, to tensors, arrays and integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.errors import BadGraph
from staticgraph.sizes.whole_numbers import whole_numbers
from staticgraph.store.columns import Array, native


def whole_count(nodes: Any, number: int) -> int:
    """Returns ``num_nodes`` of one graph as an int; PyG allows any type, and None means 0.

    Raises:
        BadGraph: if it is not a whole number.
    """
    if nodes is None or type(nodes) is int:
        return nodes or 0
    nodes = nodes.item() if isinstance(nodes, Tensor) and nodes.numel() == 1 else nodes
    return int(whole_numbers(nodes, f"graph {number}: num_nodes", BadGraph).reshape(-1)[0])


def as_tensor(value: Any, key: str = "edge_index") -> Tensor | None:
    """Converts numbers, arrays and tensors to a CPU tensor with at least one dimension.

    Returns None for values that a tensor cannot hold (strings).

    Raises:
        BadGraph: for a sparse tensor, or an array of a dtype that torch does not have.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise BadGraph(
                "sparse adjacency matrices are not supported: store edge_index instead of adj_t"
            )
        return torch.atleast_1d(value.detach().cpu())
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return torch.atleast_1d(torch.from_numpy(native(np.atleast_1d(value), key)))
    if isinstance(value, bool | int | float):
        return torch.tensor([value])
    return None


def as_array(key: str, tensor: Tensor) -> Array:
    """Converts a field's tensor over all graphs to the array that a store keeps.

    Raises:
        BadGraph: if NumPy has no such dtype.
    """
    try:
        return tensor.contiguous().numpy()
    except TypeError:  # bfloat16 and 8-bit floats
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise BadGraph(
            f"{key!r} is {dtype}, which a store cannot keep; give it as float32"
        ) from None
