"""Functions of PyG that read a shape from data, given the shape instead, while a step runs.

``global_add_pool(x, batch)`` finds the number of graphs with ``int(batch.max()) + 1``: a host read
that no CUDA graph records. ``remove_self_loops`` indexes with a mask. Each of these has an equal of
fixed shape once the bucket is known. They are exchanged by name, from an allow-list (here and in
the ``static_functions`` of the modules beside this one), wherever a module has bound them, and only
between entering and leaving the :class:`StaticCalls` of a runner; everything else keeps calling
PyG's own. Nothing is rewritten that is not on the list: rewriting every mask generically compiles
TopKPooling into garbage.

What it does not reach: a listed function held in a closure, a default argument or a container.
PyG's pools held so are fine if they are given ``batch``: what they call is exchanged beneath them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch_geometric.backend
from torch import Tensor
from torch_geometric.nn import MemPooling, global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.utils import scatter
from torch_geometric.utils.num_nodes import maybe_num_nodes

from staticgraph.nn import (
    dense_batch,
    dense_pools,
    dropout_edges,
    refused,
    relations,
    self_loops,
    semantic,
)
from staticgraph.nn.context import BatchContext

Site = tuple[Any, str, Any, Any]  # where, name, stock, static
Table = dict[Callable[..., Any], Callable[..., Any]]

# Modules that never bind a function of PyG; torch alone has two thousand.
_UNRELATED = ("torch.", "staticgraph", "numpy", "numba", "llvmlite", "triton", "sympy", "scipy")


class StaticCalls:
    """Exchanges the listed functions while it is entered; can be entered again from within."""

    def __init__(self, model: torch.nn.Module, context: BatchContext) -> None:
        static_of = {id(stock): static for stock, static in static_functions(context).items()}
        holders = [*_modules(), *model.modules()]
        self._sites: list[Site] = [
            (holder, name, value, static_of[id(value)])
            for holder in holders
            for name, value in list(vars(holder).items())
            if id(value) in static_of
        ]
        self._sites += _aggregation_sites(context)
        kl_loss = staticmethod(dense_pools.kl_loss_of(context))
        self._sites.append((MemPooling, "kl_loss", vars(MemPooling)["kl_loss"], kl_loss))
        # Whether to use segment_matmul is a heuristic on counts that it reads from the data.
        backend = torch_geometric.backend
        self._sites.append((backend, "use_segment_matmul", backend.use_segment_matmul, False))
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            for where, name, _, static in self._sites:
                _bind(where, name, static)

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            for where, name, stock, _ in self._sites:
                _bind(where, name, stock)


def _bind(where: Any, name: str, value: Any) -> None:
    if isinstance(where, type):
        setattr(where, name, value)
    else:
        where.__dict__[name] = value  # a third of the time of setattr, twice a step, 300 times


def static_functions(context: BatchContext) -> Table:
    """The list: each function of PyG and its equal of fixed shape."""
    return {
        **_sized_functions(context),
        **_pools_of_everything(context),
        **self_loops.static_functions(context),
        **dense_batch.static_functions(context),
        **dense_pools.static_functions(context),
        **dropout_edges.static_functions(context),
        **relations.static_functions(context),
        **semantic.static_functions(context),
        **refused.static_functions(),
    }


def _modules() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and not name.startswith(_UNRELATED) and name != "torch"
    ]


def _sized_functions(context: BatchContext) -> Table:
    """Functions that only must be told how many groups or nodes there are."""

    def static_scatter(
        src: Tensor,
        index: Tensor,
        dim: int = 0,
        dim_size: int | None = None,
        reduce: str = "sum",
    ) -> Tensor:
        if dim_size is None:
            dim_size = context.size_for(index)
        return scatter(src, index, dim, dim_size, reduce)

    def static_maybe_num_nodes(edge_index: Any, num_nodes: int | None = None) -> int:
        if num_nodes is not None or not isinstance(edge_index, Tensor):
            return maybe_num_nodes(edge_index, num_nodes)
        if edge_index.layout == torch.strided and edge_index.dim() == 2:
            return context.num_nodes_for(edge_index)
        if edge_index.dim() == 1:
            return context.size_for(edge_index)
        return maybe_num_nodes(edge_index, num_nodes)

    return {scatter: static_scatter, maybe_num_nodes: static_maybe_num_nodes}


def _pools_of_everything(context: BatchContext) -> Table:
    """Global pools called without ``batch``: one row of all nodes, of which padding is no part.
    With the batch's own they are a pass over each graph where the model has kernels."""

    def without_batch(
        pool: Callable[..., Tensor], reduce: str, fill: float
    ) -> Callable[..., Tensor]:
        def static_pool(x: Tensor, batch: Tensor | None = None, size: int | None = None) -> Tensor:
            if context.kernels and batch is not None:
                from staticgraph.nn.fused.pool import pooled

                if (found := pooled(context.batch, reduce, x, batch, size)) is not None:
                    return found
            rows = context.find_rows(x.size(0)) if batch is None and x.dim() <= 2 else None
            if rows is None:
                return pool(x, batch, size)
            kept = torch.where(context.column_mask(x), x, fill)
            if pool is not global_mean_pool:
                return torch.where(rows.mask.any(), pool(kept, None), 0)
            count = rows.mask.sum().clamp(min=1)
            return kept.sum(-1 if x.dim() == 1 else -2, keepdim=True) / count

        return static_pool

    return {
        global_add_pool: without_batch(global_add_pool, "sum", 0.0),
        global_mean_pool: without_batch(global_mean_pool, "mean", 0.0),
        global_max_pool: without_batch(global_max_pool, "max", -torch.inf),
    }


def _aggregation_sites(context: BatchContext) -> list[Site]:
    """Methods of PyG's base class of aggregations, which read sizes and order off the index."""
    stock_call, stock_assert = Aggregation.__call__, Aggregation.assert_sorted_index
    plain_call = torch.nn.Module.__call__

    def sized_call(
        self: Aggregation,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        **kwargs: Any,
    ) -> Tensor:
        if index is None and ptr is None:
            return stock_call(self, x, index, ptr, dim_size, dim, **kwargs)
        if dim_size is None and ptr is not None:
            dim_size = ptr.numel() - 1
        elif dim_size is None and index is not None:
            dim_size = context.size_for(index)
        # Not the stock method: it answers any RuntimeError with a look at index.max().
        return plain_call(self, x, index=index, ptr=ptr, dim_size=dim_size, dim=dim, **kwargs)

    def no_assert(self: Aggregation, index: Tensor | None) -> None:
        """Batch vectors and destinations of a static batch ascend by construction."""

    return [
        (Aggregation, "__call__", stock_call, sized_call),
        (Aggregation, "assert_sorted_index", stock_assert, no_assert),
    ]
