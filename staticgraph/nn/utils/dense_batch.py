"""``to_dense_batch`` and its inverse, of fixed shape, for models that call them directly.

The block is as wide as the bucket allows (outside a compiled step, as wide as the batch needs), and
its padding graphs are rows without nodes. The returned mask knows the way back: ``h[mask]``, an
index with as many results as there are nodes, becomes a gather of ``N`` rows with zeros on padding.
Everywhere else the mask is an ordinary bool tensor. In a padding graph it marks the first place,
which holds zeros, as real: attention over an empty set would be NaN, and NaN times the zero
gradient of a padding row is NaN in every weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import to_dense_adj, to_dense_batch

from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import DisableTorchFunctionSubclass
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import leaves, present
from staticgraph.nn.context.dense_layout import attendable, attendable_places
from staticgraph.nn.context.marked_tensor import marked


class _DenseMask(Tensor):
    """A bool tensor whose use as an index is a gather while its batch is bound."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], cls):
            binding = present()
            if binding is not None:
                block = binding.context.find_block(args[1].shape)
                assert block is not None
                return block.to_nodes(args[0])
        with DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def static_to_dense_batch(
    context: BatchContext,
    x: Tensor,
    batch: Tensor | None = None,
    fill_value: float | Tensor = 0.0,
    max_num_nodes: int | None = None,
    batch_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows ``[N, F]`` to ``[G, width, F]``, and ``[G, width]`` bool, the places that hold a node.

    Raises:
        NotStatic: ``max_num_nodes`` is given without ``batch``, so all graphs would be one.
    """
    if batch is None and max_num_nodes is None:
        mask = context.column_mask(x)
        return torch.where(mask, x, 0)[None], mask.view(1, -1)
    if batch is None:
        raise NotStatic(
            "to_dense_batch(x, max_num_nodes=...) without batch would put all graphs into one: "
            "pass batch=batch"
        )
    groups = context.size_for(batch) if batch_size is None else batch_size
    width = widest(context, batch) if max_num_nodes is None else max_num_nodes
    block = context.block(batch, groups, width)
    dense = block.to_dense(x)
    mask = block.occupied
    context.lay_out(groups, width, None if max_num_nodes is not None else block.reached)
    rows = context.find_rows(groups)
    if rows is not None:
        mask = (attendable if leaves() else attendable_places)(mask, rows.mask)
    if isinstance(fill_value, Tensor) or fill_value != 0.0:
        # Not at the first place of a padding graph: a softmax over infinities alone is NaN.
        empty = ~mask.view(groups, width, *(1,) * (x.dim() - 1))
        dense = torch.where(empty, fill_value, dense)
    return dense, marked(mask, _DenseMask)


def static_to_dense_adj(
    context: BatchContext,
    edge_index: Tensor,
    batch: Tensor | None = None,
    edge_attr: Tensor | None = None,
    max_num_nodes: int | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Edges ``[2, E]`` to ``[G, width, width]``; padding edges are left out.

    Raises:
        NotStatic: called without ``batch``, so all graphs would be one.
    """
    if batch is None:
        raise NotStatic(
            "to_dense_adj without batch would put all graphs into one: pass batch=batch"
        )
    groups = context.size_for(batch) if batch_size is None else batch_size
    width = widest(context, batch) if max_num_nodes is None else max_num_nodes
    place = context.block(batch, groups, width).place_of_node
    nowhere = groups * width
    source, target = place[edge_index[0]], place[edge_index[1]]
    inside = (source < nowhere) & (target < nowhere) & context.mask_of(edge_index[0])
    cell = torch.where(inside, source * width + target % width, nowhere * width)
    if edge_attr is None:
        edge_attr = torch.ones(edge_index.size(1), device=edge_index.device)
    shape = edge_attr.shape[1:]
    adjacency = edge_attr.new_zeros(nowhere * width + 1, *shape).index_add(0, cell, edge_attr)
    return adjacency[:-1].view(groups, width, width, *shape)


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Maps PyG's functions from sparse to dense batches to equivalents of fixed shape."""
    return {to_dense_batch: static_to_dense_batch, to_dense_adj: static_to_dense_adj}


def widest(context: BatchContext, index: Tensor) -> int:
    """Returns the width that a block of these rows must have.

    Raises:
        NotStatic: the number of rows per group is unbounded, such as edges of one node.
    """
    rows = context.rows_of(index)
    if rows.widest is None:
        raise NotStatic(
            f"how many {rows.what} belong to one group is known only to the data, so there is no "
            "fixed width to lay them out in: give max_num_elements= (max_num_nodes=), or use an "
            "aggregation that needs no dense block, such as 'mean'"
        )
    if rows.counted == "node" and context.real is not None:
        return max(1, context.real.largest)
    if context.free_sizes(index):
        return max(1, int(torch.bincount(index[rows.mask], minlength=1).max()))
    return rows.widest
