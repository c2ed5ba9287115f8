"""``dropout_edge`` of fixed shape: dropped edges become edges of the last node, which is padding.

Stock PyG removes them, so that the number that remains is random, and returns the mask with which
the model selects its edge attributes. Here the returned mask selects every row when used as an
index, and is False where an edge was dropped. Each edge has its own Bernoulli variable, as in PyG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import dropout_adj, dropout_edge

from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import DisableTorchFunctionSubclass
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.marked_tensor import marked


class _DropMask(Tensor):
    """A bool tensor over edges; as an index it keeps every row, since none was removed."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], cls):
            return args[0]
        with DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _drop(
    context: BatchContext, edge_index: Tensor, p: float, undirected: bool
) -> tuple[Tensor, Tensor]:
    if undirected:
        raise NotStatic(
            "dropout_edge(force_undirected=True) reorders edges by what was drawn, so their "
            "attributes can only be matched by reading it: use force_undirected=False"
        )
    keep = torch.rand(edge_index.size(1), device=edge_index.device) >= p
    last = context.num_nodes_for(edge_index) - 1
    return torch.where(keep, edge_index, last), keep


def static_dropout_edge(
    context: BatchContext,
    edge_index: Tensor,
    p: float = 0.5,
    force_undirected: bool = False,
    training: bool = True,
) -> tuple[Tensor, Tensor]:
    """``[2, E]`` with the dropped edges moved to padding, and ``[E]`` bool, the edges kept."""
    if not training or p == 0.0:
        keep = torch.ones_like(edge_index[0], dtype=torch.bool)
        return edge_index, marked(keep, _DropMask)
    dropped, keep = _drop(context, edge_index, p, force_undirected)
    return dropped, marked(keep, _DropMask)


def static_dropout_adj(
    context: BatchContext,
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    p: float = 0.5,
    force_undirected: bool = False,
    num_nodes: int | None = None,
    training: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """``[2, E]`` with the dropped edges moved to padding, and the edges' attributes."""
    if not training or p == 0.0:
        return edge_index, edge_attr
    return _drop(context, edge_index, p, force_undirected)[0], edge_attr


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Maps PyG's edge dropout to equivalents of fixed shape."""
    return {dropout_edge: static_dropout_edge, dropout_adj: static_dropout_adj}
