"""Removes and adds self-loops without a data-dependent change of shape.

Stock ``remove_self_loops`` indexes with a mask, so how many edges remain depends on the data. Here
a removed self-loop becomes an edge of the last node, which is always padding, with attribute zero;
an added self-loop has its own row after the edges. The resulting number of rows is one that nothing
else in the batch has, so that a norm over messages finds the right mask.

Sparse matrices and ``EdgeIndex`` are not handled here; they go to PyG's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    get_laplacian,
    remove_self_loops,
)
from torch_geometric.utils.loop import compute_loop_attr

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import RowKind, leaves
from staticgraph.nn.context.dispatch import stock
from staticgraph.nn.context.leaf_calls import leaf

Edges = tuple[Tensor, Tensor | None]
WITHOUT = "edges without self-loops"
WITH = "edges and a self-loop a node"

_stock_remove_self_loops = stock(remove_self_loops)
_stock_add_self_loops = stock(add_self_loops)
_stock_add_remaining_self_loops = stock(add_remaining_self_loops)
_stock_get_laplacian = stock(get_laplacian)
_stock_gcn_norm = stock(gcn_norm)


def static_remove_self_loops(
    context: BatchContext, edge_index: Tensor, edge_attr: Tensor | None = None
) -> Edges:
    """``[2, E']`` with self-loops moved to padding, and the edges' attributes."""
    if not _is_plain(edge_index):
        return _stock_remove_self_loops(edge_index, edge_attr)
    return without_self_loops(context, edge_index, edge_attr)


def static_add_self_loops(
    context: BatchContext,
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    fill_value: Any = None,
    num_nodes: Any = None,
) -> Edges:
    """``[2, E + N]``, one self-loop per node after the edges, and the attributes."""
    if not _is_plain(edge_index) or not isinstance(num_nodes, int | None):
        plain: Callable[..., Edges] = _stock_add_self_loops
        return plain(edge_index, edge_attr, fill_value, num_nodes)
    nodes = context.num_nodes_for(edge_index) if num_nodes is None else num_nodes
    rows = context.find_rows(edge_index.size(1))
    known = rows is not None and context.find_rows(nodes) is not None
    if leaves() and known and _plain_fill(fill_value):
        assert rows is not None
        size = _size_of(context, WITH, edge_index.size(1) + nodes)
        _register(context, rows, nodes, size)
        return loops_added(edge_index, edge_attr, fill_value, nodes, size)
    out_index, out_attr = _stock_add_self_loops(edge_index, edge_attr, fill_value, nodes)
    return _registered_loops(context, rows, out_index, out_attr, nodes)


def _plain_fill(value: Any) -> bool:
    return value is None or isinstance(value, float | int | str)


@leaf
def loops_added(
    edge_index: Tensor, edge_attr: Tensor | None, fill_value: Any, nodes: int, size: int
) -> Edges:
    """PyG's ``add_self_loops``, filled up to ``size`` with edges of the last node."""
    plain: Callable[..., Edges] = _stock_add_self_loops
    out_index, out_attr = plain(edge_index, edge_attr, fill_value, nodes)
    spared = _with_spare(out_index, size, nodes - 1)
    return spared, None if out_attr is None else _with_spare_rows(out_attr, size)


def static_add_remaining_self_loops(
    context: BatchContext,
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    fill_value: Any = None,
    num_nodes: int | None = None,
) -> Edges:
    """``[2, E + N]``, one self-loop per node after the edges, with existing self-loops moved to
    padding, and the attributes."""
    if not _is_plain(edge_index):
        return _stock_add_remaining_self_loops(edge_index, edge_attr, fill_value, num_nodes)
    nodes = context.num_nodes_for(edge_index) if num_nodes is None else num_nodes
    return with_remaining_self_loops(context, edge_index, edge_attr, fill_value, nodes)


def static_get_laplacian(
    context: BatchContext,
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    normalization: str | None = None,
    dtype: torch.dtype | None = None,
    num_nodes: int | None = None,
) -> Edges:
    """PyG's ``get_laplacian``; removed self-loops have weight zero."""
    if edge_weight is None:  # ones made here, so that removed self-loops get weight zero, not one
        edge_weight = torch.ones(edge_index.size(1), dtype=dtype, device=edge_index.device)
    return _stock_get_laplacian(edge_index, edge_weight, normalization, dtype, num_nodes)


def static_gcn_norm(
    context: BatchContext,
    edge_index: Any,
    edge_weight: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """PyG's ``gcn_norm``, with finite degrees in the padding."""
    rows = context.find_rows(edge_index.size(1)) if _is_plain(edge_index) else None
    if edge_weight is not None and rows is not None:
        # The degree is raised to -1/2: a negative one gives NaN, zero an infinite gradient.
        edge_weight = torch.where(rows.mask, edge_weight, 1)
    if leaves() and rows is not None and rows.counted == "edge":
        return _gcn_normed(context, rows, edge_index, edge_weight, *args, **kwargs)
    return _stock_gcn_norm(edge_index, edge_weight, *args, **kwargs)


def _gcn_normed(
    context: BatchContext,
    rows: RowKind,
    edge_index: Tensor,
    edge_weight: Tensor | None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = "source_to_target",
    dtype: torch.dtype | None = None,
) -> Edges:
    nodes = context.num_nodes_for(edge_index) if num_nodes is None else num_nodes
    size = edge_index.size(1)
    if add_self_loops:
        size = _size_of(context, WITH, size + nodes)
        loops = edge_index[0] == edge_index[1]
        _register(context, rows._replace(mask=rows.mask & ~loops), nodes, size)
    fill = 2.0 if improved else 1.0
    return gcn_normed(
        edge_index, edge_weight, rows.mask, nodes, fill, add_self_loops, flow, dtype, size
    )


@leaf
def gcn_normed(
    edge_index: Tensor,
    edge_weight: Tensor | None,
    edge_mask: Tensor,
    nodes: int,
    fill: float,
    loops: bool,
    flow: str,
    dtype: torch.dtype | None,
    size: int,
) -> Edges:
    """PyG's ``gcn_norm`` of edges of which those in ``edge_mask`` are real: with ``loops``, one
    self-loop per node is added, and edges of the last node fill up to ``size``."""
    if loops:
        edge_index, edge_weight = _remaining(edge_index, edge_weight, edge_mask, fill, nodes)
        edge_index = _with_spare(edge_index, size, nodes - 1)
        if edge_weight is not None:
            edge_weight = _with_spare_rows(edge_weight, size)
    plain: Any = _stock_gcn_norm
    return plain(edge_index, edge_weight, nodes, False, False, flow, dtype)


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Maps PyG's functions on self-loops to equivalents of fixed shape."""
    return {
        gcn_norm: static_gcn_norm,
        remove_self_loops: static_remove_self_loops,
        add_self_loops: static_add_self_loops,
        add_remaining_self_loops: static_add_remaining_self_loops,
        get_laplacian: static_get_laplacian,
    }


def _is_plain(edge_index: Any) -> bool:
    return (
        isinstance(edge_index, Tensor)
        and not isinstance(edge_index, EdgeIndex)
        and edge_index.layout == torch.strided
    )


def without_self_loops(
    context: BatchContext, edge_index: Tensor, edge_attr: Tensor | None
) -> Edges:
    """``[2, e]`` -> ``[2, e']`` with ``e' > e``: self-loops and added rows are edges of the last
    node, with attribute zero."""
    edges = edge_index.size(1)
    last = context.num_nodes_for(edge_index) - 1
    rows = context.find_rows(edges)
    loops = edge_index[0] == edge_index[1]
    size = _size_of(context, WITHOUT, edges + 1)
    if rows is not None:
        mask = _with_spare_rows(rows.mask & ~loops, size)
        context.register(size, RowKind(WITHOUT, mask, last + 1))
        if leaves():
            return loops_removed(edge_index, edge_attr, rows.mask, last, size)
    out_index = _with_spare(torch.where(loops, last, edge_index), size, last)
    if edge_attr is None:
        return out_index, None
    values = _only(edge_attr, ~loops if rows is None else rows.mask & ~loops)
    return out_index, _with_spare_rows(values, size)


@leaf
def loops_removed(
    edge_index: Tensor, edge_attr: Tensor | None, edge_mask: Tensor, last: int, size: int
) -> Edges:
    """:func:`without_self_loops` of edges of which those in ``edge_mask`` are real."""
    loops = edge_index[0] == edge_index[1]
    out_index = _with_spare(torch.where(loops, last, edge_index), size, last)
    if edge_attr is None:
        return out_index, None
    return out_index, _with_spare_rows(_only(edge_attr, edge_mask & ~loops), size)


def with_remaining_self_loops(
    context: BatchContext,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    fill_value: Any,
    num_nodes: int,
) -> Edges:
    """One self-loop per node, which keeps the attribute of an existing self-loop, as in PyG."""
    rows = context.find_rows(edge_index.size(1))
    mask = None if rows is None else rows.mask
    between = rows
    if rows is not None:
        between = rows._replace(mask=rows.mask & (edge_index[0] != edge_index[1]))
    known = between is not None and context.find_rows(num_nodes) is not None
    if leaves() and known and _plain_fill(fill_value):
        assert between is not None
        assert mask is not None
        size = _size_of(context, WITH, edge_index.size(1) + num_nodes)
        _register(context, between, num_nodes, size)
        return loops_remaining(edge_index, edge_attr, mask, fill_value, num_nodes, size)
    out_index, out_attr = _remaining(edge_index, edge_attr, mask, fill_value, num_nodes)
    rows = between
    return _registered_loops(context, rows, out_index, out_attr, num_nodes)


@leaf
def loops_remaining(
    edge_index: Tensor,
    edge_attr: Tensor | None,
    edge_mask: Tensor,
    fill_value: Any,
    nodes: int,
    size: int,
) -> Edges:
    """PyG's ``add_remaining_self_loops``, filled up to ``size`` with edges of the last node."""
    out_index, out_attr = _remaining(edge_index, edge_attr, edge_mask, fill_value, nodes)
    spared = _with_spare(out_index, size, nodes - 1)
    return spared, None if out_attr is None else _with_spare_rows(out_attr, size)


def _remaining(
    edge_index: Tensor,
    edge_attr: Tensor | None,
    edge_mask: Tensor | None,
    fill_value: Any,
    num_nodes: int,
) -> Edges:
    nodes = torch.arange(num_nodes, device=edge_index.device)
    loops = edge_index[0] == edge_index[1]
    moved = torch.where(loops, num_nodes - 1, edge_index)
    out_index = torch.cat([moved, nodes.expand(2, -1)], dim=1)
    if edge_attr is None:
        return out_index, None
    between, real_loops = ~loops, loops
    if edge_mask is not None:
        between, real_loops = edge_mask & between, edge_mask & real_loops
    loop_attr = compute_loop_attr(edge_index, edge_attr, num_nodes, False, fill_value)
    owner = torch.where(
        real_loops, edge_index[0], num_nodes
    )  # other edges write a row that is dropped
    spare = torch.cat([loop_attr, loop_attr.new_zeros(1, *loop_attr.shape[1:])])
    loop_values = spare.index_copy(0, owner, edge_attr)[:num_nodes]
    return out_index, torch.cat([_only(edge_attr, between), loop_values])


def _only(edge_attr: Tensor, mask: Tensor) -> Tensor:
    """Zeros where an edge is not real, so that a weighted degree is never negative there."""
    return torch.where(mask.view(-1, *(1,) * (edge_attr.dim() - 1)), edge_attr, 0)


def _registered_loops(
    context: BatchContext,
    rows: RowKind | None,
    out_index: Tensor,
    out_attr: Tensor | None,
    num_nodes: int,
) -> Edges:
    """Registers edges and the self-loops after them under a row count of their own: where something
    else in the batch has as many rows, edges of the last node follow, with attribute zero."""
    nodes = context.find_rows(num_nodes)
    if rows is None or nodes is None:
        return out_index, out_attr
    size = _size_of(context, WITH, out_index.size(1))
    _register(context, rows, num_nodes, size)
    spared = _with_spare(out_index, size, num_nodes - 1)
    return spared, None if out_attr is None else _with_spare_rows(out_attr, size)


def _register(context: BatchContext, rows: RowKind, nodes: int, size: int) -> None:
    """Declares that tensors of ``size`` rows are edges followed by self-loops."""
    node_rows = context.find_rows(nodes)
    assert node_rows is not None
    mask = torch.cat([rows.mask, node_rows.mask])
    context.register(size, RowKind(WITH, _with_spare_rows(mask, size), nodes))


def _with_spare(index: Tensor, size: int, last: int) -> Tensor:
    """``[2, e]`` -> ``[2, size]``, filled with edges of the last node."""
    more = size - index.size(1)
    return index if not more else torch.cat([index, index.new_full((2, more), last)], dim=1)


def _with_spare_rows(rows: Tensor, size: int) -> Tensor:
    """``[e, ...]`` -> ``[size, ...]``, filled with zeros."""
    more = size - rows.size(0)
    return rows if not more else torch.cat([rows, rows.new_zeros(more, *rows.shape[1:])])


def _size_of(context: BatchContext, what: str, at_least: int) -> int:
    """The row count that ``what`` has in this batch, so that every layer uses the same."""
    for size in range(at_least, at_least + int(math.sqrt(at_least)) + 8):
        if context.may_become(size, what):
            return size
    raise AssertionError("no free row count")
