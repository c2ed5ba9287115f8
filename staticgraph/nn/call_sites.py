"""Functions of PyG that read a shape from data, given the shape instead, while a step runs.

``global_add_pool(x, batch)`` finds the number of graphs with ``int(batch.max()) + 1``: a host read
that no CUDA graph records. ``remove_self_loops`` indexes with a mask. Each of these has an equal of
fixed shape once the bucket is known. They are exchanged by name, from the list below, in the
modules of PyG and in those that define the model's layers, and only between entering and leaving
the :class:`StaticCalls` of a runner; everything else keeps calling PyG's own. Nothing is rewritten
that is not on the list: rewriting every mask generically compiles TopKPooling into garbage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.utils import (
    add_remaining_self_loops,
    remove_self_loops,
    scatter,
)
from torch_geometric.utils.num_nodes import maybe_num_nodes

from staticgraph.nn.context import BatchContext

Site = tuple[Any, str, Any, Any]  # where, name, stock, static


class StaticCalls:
    """Exchanges the listed functions while it is entered; can be entered again from within."""

    def __init__(self, model: torch.nn.Module, context: BatchContext) -> None:
        table = _static_functions(context)
        self._sites = [
            (module, name, stock, static)
            for module in _modules_of(model)
            for name, stock, static in _bindings(module, table)
        ]
        self._sites.append(
            (Aggregation, "__call__", Aggregation.__call__, _sized_aggregation(context))
        )
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            for where, name, _, static in self._sites:
                setattr(where, name, static)

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            for where, name, stock, _ in self._sites:
                setattr(where, name, stock)


def _modules_of(model: torch.nn.Module) -> list[ModuleType]:
    """Modules of PyG, and those that define a class of the model."""
    defining = {type(module).__module__ for module in model.modules()}
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and (name in defining or name.startswith("torch_geometric."))
        and not name.startswith("staticgraph.")
    ]


def _bindings(
    module: ModuleType, table: dict[Callable[..., Any], Callable[..., Any]]
) -> list[tuple[str, Any, Any]]:
    found = []
    for name, value in list(vars(module).items()):
        if callable(value) and getattr(value, "__hash__", None) is not None:
            try:
                static = table.get(value)
            except TypeError:  # a callable whose hash is refused
                continue
            if static is not None:
                found.append((name, value, static))
    return found


def _static_functions(
    context: BatchContext,
) -> dict[Callable[..., Any], Callable[..., Any]]:
    """The list: each function of PyG and its equal of fixed shape."""

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
        if num_nodes is not None:
            return num_nodes
        assert context.batch is not None
        if isinstance(edge_index, Tensor) and edge_index.dim() == 2:
            return context.batch.num_nodes
        return context.size_for(edge_index)

    def static_remove_self_loops(edge_index: Tensor, edge_attr: Tensor | None = None) -> Any:
        return _loops_to_padding(edge_index, static_maybe_num_nodes(edge_index)), edge_attr

    def static_add_remaining_self_loops(
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        fill_value: float | Tensor | str | None = None,
        num_nodes: int | None = None,
    ) -> Any:
        nodes = static_maybe_num_nodes(edge_index, num_nodes)
        return _add_remaining_self_loops(edge_index, edge_attr, fill_value, nodes)

    return {
        scatter: static_scatter,
        maybe_num_nodes: static_maybe_num_nodes,
        remove_self_loops: static_remove_self_loops,
        add_remaining_self_loops: static_add_remaining_self_loops,
    }


def _sized_aggregation(context: BatchContext) -> Callable[..., Tensor]:
    stock = Aggregation.__call__

    def call(
        self: Aggregation,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        **kwargs: Any,
    ) -> Tensor:
        if dim_size is None and ptr is None and index is not None:
            dim_size = context.size_for(index)
        return stock(self, x, index, ptr, dim_size, dim, **kwargs)

    return call


def _loops_to_padding(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Self-loops become edges of the last node, which is always padding."""
    loops = edge_index[0] == edge_index[1]
    return torch.where(loops, num_nodes - 1, edge_index)


def _add_remaining_self_loops(
    edge_index: Tensor,
    edge_attr: Tensor | None,
    fill_value: float | Tensor | str | None,
    num_nodes: int,
) -> tuple[Tensor, Tensor | None]:
    """One loop a node, which keeps the attribute of a loop that was there, as PyG's does."""
    from torch_geometric.utils.loop import compute_loop_attr

    nodes = torch.arange(num_nodes, device=edge_index.device)
    out_index = torch.cat([_loops_to_padding(edge_index, num_nodes), nodes.expand(2, -1)], dim=1)
    if edge_attr is None:
        return out_index, None
    loop_attr = compute_loop_attr(edge_index, edge_attr, num_nodes, False, fill_value)
    loops = edge_index[0] == edge_index[1]
    owner = torch.where(loops, edge_index[0], num_nodes)  # other edges write a row that is dropped
    spare = torch.cat([loop_attr, loop_attr.new_zeros(1, *loop_attr.shape[1:])])
    kept = spare.index_copy(0, owner, edge_attr)[:num_nodes]
    return out_index, torch.cat([edge_attr, kept])
