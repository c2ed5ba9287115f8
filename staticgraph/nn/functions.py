"""Static forms of PyG functions that read a shape from data, used while a batch is bound.

``global_add_pool(x, batch)`` finds the number of graphs with ``int(batch.max()) + 1``: a host read
that no CUDA graph records. ``remove_self_loops`` indexes with a mask. Once the bucket is known,
each of these has an equivalent of fixed shape. They are on an allow-list (here and in the
``static_functions`` of the modules next to this one), and :func:`install` makes each of them
dispatch (:mod:`staticgraph.nn.context.dispatch`): in a thread where a batch is bound it runs the
static form, in any other thread PyG's own code. Functions that are not on the list are never
rewritten: a generic rewrite of every mask would compile TopKPooling into garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.utils import scatter, softmax
from torch_geometric.utils.num_nodes import maybe_num_nodes

from staticgraph.batches.batch.real_batch import RealBatch
from staticgraph.batches.batch.static_batch import STANDS_IN, StaticBatch
from staticgraph.nn import refused_layers
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import leaves
from staticgraph.nn.context.dispatch import dispatch, stock
from staticgraph.nn.context.leaf_calls import leaf
from staticgraph.nn.conv import relations
from staticgraph.nn.pool import dense as dense_pools
from staticgraph.nn.pool import neighbours, select
from staticgraph.nn.utils import dense_batch, dropout_edges, self_loops

Functions = dict[Callable[..., Any], Callable[..., Any]]

_installed = False


def install() -> None:
    """Makes PyG's listed functions dispatch, once per process; called by every conversion."""
    global _installed
    if _installed:
        return
    for function, static in static_functions().items():
        dispatch(function, static)
    _accept_as_batch()
    _installed = True


def _accept_as_batch() -> None:
    """Makes ``isinstance(batch, Batch)`` and ``isinstance(batch, Data)`` of PyG True for this
    library's batches.

    The metaclasses decide, which torch.compile asks as well.
    """
    for kind in (StaticBatch, RealBatch):
        Data.register(kind)

    def is_subclass(cls: type, other: type) -> bool:
        """Whether ``other`` is a subclass of ``cls``, or ``cls`` is ``Batch`` and it stands in."""
        stands_in = cls is Batch and getattr(other, STANDS_IN, False)
        return stands_in or cls in other.__mro__  # what torch.compile traces

    def is_instance(cls: type, value: object) -> bool:
        """Whether the class of a value is, as :func:`is_subclass` tells."""
        return type.__instancecheck__(cls, value) or is_subclass(cls, type(value))

    metaclass: Any = type(Batch)
    metaclass.__subclasscheck__ = is_subclass
    metaclass.__instancecheck__ = is_instance


def static_functions() -> Functions:
    """Maps each listed function of PyG to its equivalent of fixed shape.

    The static form takes the context of the running model, followed by the function's arguments.
    """
    return {
        scatter: _scatter,
        softmax: _softmax,
        maybe_num_nodes: _maybe_num_nodes,
        global_add_pool: _pool(global_add_pool, "sum", 0.0),
        global_mean_pool: _pool(global_mean_pool, "mean", 0.0),
        global_max_pool: _pool(global_max_pool, "max", -torch.inf),
        Aggregation.__call__: _aggregate,
        Aggregation.assert_sorted_index: _assert_nothing,
        **self_loops.static_functions(),
        **dense_batch.static_functions(),
        **dense_pools.static_functions(),
        **neighbours.static_functions(),
        **select.static_functions(),
        **dropout_edges.static_functions(),
        **relations.static_functions(),
        **refused_layers.static_functions(),
    }


# ---------------------------------------------------------------- with a given number of groups

_stock_scatter = stock(scatter)
_stock_maybe_num_nodes = stock(maybe_num_nodes)
_stock_softmax = stock(softmax)


def _scatter(
    context: BatchContext,
    src: Tensor,
    index: Tensor,
    dim: int = 0,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    if dim_size is None:
        dim_size = context.size_for(index)
    if leaves() and isinstance(dim_size, int) and src.dim() > 0:
        return scattered(src, index, dim % src.dim(), dim_size, reduce)
    return _stock_scatter(src, index, dim, dim_size, reduce)


@leaf
def scattered(src: Tensor, index: Tensor, dim: int, dim_size: int, reduce: str) -> Tensor:
    """PyG's ``scatter``."""
    return _stock_scatter(src, index, dim, dim_size, reduce)


def _softmax(
    context: BatchContext,
    src: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    num_nodes: int | None = None,
    dim: int = 0,
) -> Tensor:
    if not leaves() or index is None or ptr is not None:
        return _stock_softmax(src, index, ptr, num_nodes, dim)
    return softmaxed(src, index, num_nodes or context.size_for(index), dim % src.dim())


@leaf
def softmaxed(src: Tensor, index: Tensor, num_nodes: int, dim: int) -> Tensor:
    """PyG's ``softmax`` over the rows of each group."""
    return _stock_softmax(src, index, None, num_nodes, dim)


def _maybe_num_nodes(context: BatchContext, edge_index: Any, num_nodes: int | None = None) -> int:
    if num_nodes is not None or not isinstance(edge_index, Tensor):
        return _stock_maybe_num_nodes(edge_index, num_nodes)
    if edge_index.layout == torch.strided and edge_index.dim() == 2:
        return context.num_nodes_for(edge_index)
    if edge_index.dim() == 1:
        return context.size_for(edge_index)
    return _stock_maybe_num_nodes(edge_index, num_nodes)


# ---------------------------------------------------------------- pools


def _pool(function: Callable[..., Tensor], reduce: str, fill: float) -> Callable[..., Tensor]:
    """Makes the static form of a global pool.

    Without ``batch`` it pools all real nodes into one row.
    """
    plain = stock(function)

    def static_pool(
        context: BatchContext, x: Tensor, batch: Tensor | None = None, size: int | None = None
    ) -> Tensor:
        """``[N, F]`` to ``[G, F]``, or ``[1, F]`` without ``batch``."""
        rows = context.find_rows(x.size(0)) if batch is None and x.dim() <= 2 else None
        if rows is None:
            return plain(x, batch, size)
        masked = torch.where(context.column_mask(x), x, fill)
        if reduce != "mean":
            return torch.where(rows.mask.any(), plain(masked, None), 0)
        count = rows.mask.sum().clamp(min=1)
        return masked.sum(-1 if x.dim() == 1 else -2, keepdim=True) / count

    return static_pool


# ---------------------------------------------------------------- aggregations

_stock_aggregate = stock(Aggregation.__call__)


def _aggregate(
    context: BatchContext,
    self: Aggregation,
    x: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    dim: int = -2,
    **kwargs: Any,
) -> Tensor:
    """Gives ``dim_size`` to an aggregation, whose base class would read it from the index."""
    if index is None and ptr is None:
        return _stock_aggregate(self, x, index, ptr, dim_size, dim, **kwargs)
    if dim_size is None and ptr is not None:
        dim_size = ptr.numel() - 1
    elif dim_size is None and index is not None:
        dim_size = context.size_for(index)
    # Not the stock method: on an IndexError or RuntimeError it reads index.max() to explain it.
    call = torch.nn.Module.__call__
    return call(self, x, index=index, ptr=ptr, dim_size=dim_size, dim=dim, **kwargs)


def _assert_nothing(context: BatchContext, self: Aggregation, index: Tensor | None) -> None:
    """Skips the check: batch vectors and destinations of a static batch ascend by construction."""
