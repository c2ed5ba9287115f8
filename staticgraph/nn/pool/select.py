"""TopKPooling and SAGPooling with as many rows as the bucket could ever need.

How many nodes a pool keeps depends on the sizes of the graphs, so stock pools index with a mask.
Here the kept nodes are moved to the front of ``K`` rows in PyG's own order, where ``K`` is the most
that a bucket's graphs can have left; the rows after them are padding nodes of padding graphs. Edges
between kept nodes are moved to the front of ``E'`` rows, the others become edges of the last
padding node. The new row counts are registered, so that later norms and pools know which rows are
real. In eager on a CPU, where shapes need not be fixed, ``K`` and ``E'`` are one more than what is
kept.

Invariant: the first ``k`` of the ``K`` nodes, their order, features, graphs and edges are those
that PyG computes on the unpadded batch. Among equal scores the first node wins; PyG leaves that
open and sorts unstably. Source: Gao and Ji 2019 (top-k), Lee et al. 2019 (SAG).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import SAGPooling, TopKPooling
from torch_geometric.nn.pool.connect.filter_edges import filter_adj
from torch_geometric.nn.pool.select import SelectTopK
from torch_geometric.nn.pool.select.topk import topk
from torch_geometric.utils import scatter, softmax

from staticgraph.errors import NotStatic
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import RowKind

Pooled = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor]


class StaticTopKPooling(TopKPooling):
    """``TopKPooling`` of fixed shape; the same six results, over ``K`` nodes and ``E'`` edges."""

    _staticgraph: BatchContext

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        attn: Tensor | None = None,
    ) -> Pooled:
        """Returns PyG's six results, in shapes large enough for any batch of the bucket."""
        if self._staticgraph.batch is None:
            return super().forward(x, edge_index, edge_attr, batch, attn)
        attn = x if attn is None else attn
        return _pool(self, self._staticgraph, x, attn, edge_index, edge_attr, batch)


class StaticSAGPooling(SAGPooling):
    """``SAGPooling`` of fixed shape; the same six results, over ``K`` nodes and ``E'`` edges."""

    _staticgraph: BatchContext

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        attn: Tensor | None = None,
    ) -> Pooled:
        """Returns PyG's six results, in shapes large enough for any batch of the bucket."""
        if self._staticgraph.batch is None:
            return super().forward(x, edge_index, edge_attr, batch, attn)
        attn = x if attn is None else attn
        scores = self.gnn(attn.view(-1, 1) if attn.dim() == 1 else attn, edge_index)
        return _pool(self, self._staticgraph, x, scores, edge_index, edge_attr, batch)


def _pool(
    layer: TopKPooling | SAGPooling,
    context: BatchContext,
    x: Tensor,
    attn: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    batch: Tensor | None,
) -> Pooled:
    if batch is None:
        raise NotStatic(
            f"{type(layer).__name__.removeprefix('Static')} was called without batch, so it would "
            "choose among the nodes of all graphs together: pass batch=batch"
        )
    scores = _scores(layer.select, attn, batch, context.size_for(batch))
    perm = static_topk(context, scores, layer.select.ratio, batch, layer.select.min_score)
    score = torch.where(context.mask_of(perm), scores[perm], 0)
    x = torch.where(context.column_mask(x[perm]), x[perm], 0) * score.view(-1, 1)
    x = layer.multiplier * x if layer.multiplier != 1 else x
    edge_index, edge_attr = static_filter_adj(context, edge_index, edge_attr, perm)
    return x, edge_index, edge_attr, batch[perm], perm, score


def _scores(select: SelectTopK, attn: Tensor, batch: Tensor, groups: int) -> Tensor:
    """``[N]``: the projection, through the nonlinearity or a softmax over each graph."""
    attn = attn.view(-1, 1) if attn.dim() == 1 else attn
    score = (attn * select.weight).sum(dim=-1)
    if select.min_score is None:
        # Norm of the flat weight: over dim=-1 of [1, 1], torch 2.11 traces a norm of shape [1, 1].
        return select.act(score / torch.linalg.vector_norm(select.weight.flatten()))
    return softmax(score, batch, num_nodes=groups)


def static_topk(
    context: BatchContext,
    x: Tensor,
    ratio: float | None,
    batch: Tensor,
    min_score: float | None = None,
    tol: float = 1e-7,
) -> Tensor:
    """``[K]`` int64: the kept nodes, and then the first padding node, so that it may index a field
    of the data after a second pool, too, as in plain PyG."""
    scores, groups, nodes = x.view(-1), context.size_for(batch), context.rows_of(batch)
    if nodes.widest is None:
        raise NotStatic(f"a pool over {nodes.what} has no bound on how many belong together")
    if min_score is not None:
        limit = scatter(scores, batch, 0, groups, "max")[batch] - tol
        keep_mask = nodes.mask & (scores > limit.clamp(max=min_score))
        order = torch.arange(len(scores), device=scores.device)
        most, widest = len(scores), nodes.widest
    elif ratio is not None:
        keep_mask, order = _best(scores, batch, groups, ratio, nodes.mask)
        most, widest = _most(ratio, len(scores), groups, nodes.widest)
    else:
        raise ValueError("topk needs a ratio or a min_score")
    # And one row for padding.
    count = context.free_size(_rows_for(context, keep_mask, most) + 1, topk)
    # Kept nodes, in order, go to the front; the others write a row that is cut off.
    first = keep_mask[order]
    place = torch.where(first, first.cumsum(0) - 1, count)
    padding = nodes.mask.sum().repeat(count + 1)
    mask = torch.arange(count, device=scores.device) < keep_mask.sum()
    context.register(count, RowKind(f"{nodes.what}, pooled", mask, groups, widest=widest))
    return padding.index_copy(0, place, order)[:count]


def _best(
    scores: Tensor, batch: Tensor, groups: int, ratio: float, real: Tensor
) -> tuple[Tensor, Tensor]:
    """The best nodes of each graph, and all nodes ordered by graph and then by descending score."""
    sizes = scatter(torch.ones_like(batch), batch, 0, groups, "sum")
    if ratio >= 1:
        k = sizes.new_full((groups,), int(ratio))
    else:
        k = (float(ratio) * sizes.to(scores.dtype)).ceil().long()
    order = scores.detach().argsort(descending=True, stable=True)
    order = order[batch[order].argsort(stable=True)]
    owner = batch[order]
    behind = torch.arange(len(scores), device=scores.device) - (sizes.cumsum(0) - sizes)[owner]
    chosen = behind < k[owner]
    keep_mask = torch.empty_like(real).index_copy(0, order, chosen & real[order])
    return keep_mask, order


def _rows_for(context: BatchContext, keep_mask: Tensor, most: int) -> int:
    """As many rows as are kept, where shapes need not be fixed; else the most that may be."""
    return int(keep_mask.sum()) if context.free_sizes(keep_mask) else most


def _most(ratio: float, nodes: int, groups: int, widest: int) -> tuple[int, int]:
    """The most nodes kept in total and in one graph; rounding up adds less than 1 per graph."""
    if ratio >= 1:
        return min(nodes - 1, int(ratio) * (groups - 1)), min(int(ratio), widest)
    in_all = math.floor(ratio * (nodes - 1)) + groups
    return min(nodes - 1, in_all), math.ceil(ratio * widest)


def static_filter_adj(
    context: BatchContext,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    node_index: Tensor,
    cluster_index: Tensor | None = None,
    num_nodes: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Edges between kept nodes first, in their order; the others become edges of the last node."""
    ends = context.rows_of(edge_index[0])
    nodes = len(node_index)
    row = torch.arange(nodes, device=node_index.device) if cluster_index is None else cluster_index
    rows = node_index.new_full((num_nodes or ends.groups or 0,), -1).index_copy(0, node_index, row)
    moved = rows[edge_index]
    keep_mask = ends.mask & (moved >= 0).all(0)
    count = context.free_size(_rows_for(context, keep_mask, len(keep_mask)) + 1, filter_adj)
    place = torch.where(keep_mask, keep_mask.cumsum(0) - 1, count)
    out_index = moved.new_full((2, count + 1), nodes - 1).index_copy(1, place, moved)[:, :count]
    mask = torch.arange(count, device=keep_mask.device) < keep_mask.sum()
    context.register(count, RowKind("edges, pooled", mask, nodes))
    if edge_attr is None:
        return out_index, None
    empty = edge_attr.new_zeros(count + 1, *edge_attr.shape[1:])
    return out_index, empty.index_copy(0, place, edge_attr)[:count]


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The functions that PyG's pools, and pools written after them, choose nodes and edges with."""
    return {topk: static_topk, filter_adj: static_filter_adj}
