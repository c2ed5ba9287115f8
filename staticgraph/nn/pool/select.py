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
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn import SAGPooling, TopKPooling
from torch_geometric.nn.pool.select import SelectTopK
from torch_geometric.utils import scatter, softmax

from staticgraph.errors import NotStatic
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import RowKind

Pooled = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor]


class Selection(NamedTuple):
    """Which nodes a pool keeps.

    Attributes:
        perm: ``[K]`` int64, the node in each new row; the first padding node in unused rows, so
            that it may index a field of the data after a second pool, too, as in plain PyG.
        place: ``[N]`` int64, the new row of each node; ``K - 1`` for nodes that are dropped.
        keep_mask: ``[N]`` bool.
    """

    perm: Tensor
    place: Tensor
    keep_mask: Tensor


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
    groups = context.size_for(batch)
    scores = _scores(layer.select, attn, batch, groups)
    selection, rows = _select(context, scores, batch, groups, layer)
    perm, count = selection.perm, len(selection.perm)
    context.register(count, rows)
    score = torch.where(rows.mask, scores[perm], 0)
    x = torch.where(rows.mask.view(-1, *(1,) * (x.dim() - 1)), x[perm], 0)
    x = x * score.view(-1, 1)
    x = layer.multiplier * x if layer.multiplier != 1 else x
    edge_index, edge_attr = _keep_edges(context, selection, edge_index, edge_attr, layer)
    return x, edge_index, edge_attr, batch[perm], perm, score


def _scores(select: SelectTopK, attn: Tensor, batch: Tensor, groups: int) -> Tensor:
    """``[N]``: the projection, through the nonlinearity or a softmax over each graph."""
    attn = attn.view(-1, 1) if attn.dim() == 1 else attn
    score = (attn * select.weight).sum(dim=-1)
    if select.min_score is None:
        # Norm of the flat weight: over dim=-1 of [1, 1], torch 2.11 traces a norm of shape [1, 1].
        return select.act(score / torch.linalg.vector_norm(select.weight.flatten()))
    return softmax(score, batch, num_nodes=groups)


def _select(
    context: BatchContext,
    scores: Tensor,
    batch: Tensor,
    groups: int,
    layer: TopKPooling | SAGPooling,
) -> tuple[Selection, RowKind]:
    select = layer.select
    nodes = context.rows_of(batch)
    if nodes.widest is None:
        raise NotStatic(f"a pool over {nodes.what} has no bound on how many belong together")
    if select.min_score is not None:
        limit = scatter(scores, batch, 0, groups, "max")[batch] - 1e-7  # PyG's tolerance
        keep_mask = nodes.mask & (scores > limit.clamp(max=select.min_score))
        order = torch.arange(len(scores), device=scores.device)
        most, widest = len(scores), nodes.widest
    else:
        assert select.ratio is not None
        keep_mask, order = _best(scores, batch, groups, select.ratio, nodes.mask)
        most, widest = _most(select.ratio, len(scores), groups, nodes.widest)
    # And one row for padding.
    count = context.free_size(_rows_for(context, keep_mask, most) + 1, layer)
    # Kept nodes, in order, go to the front; the others write a row that is cut off.
    first = keep_mask[order]
    place = torch.where(first, first.cumsum(0) - 1, count)
    padding = nodes.mask.sum().repeat(count + 1)
    perm = padding.index_copy(0, place, order)[:count]
    where = order.new_empty(len(scores)).index_copy(0, order, place)
    mask = torch.arange(count, device=scores.device) < keep_mask.sum()
    selection = Selection(perm, torch.where(keep_mask, where, count - 1), keep_mask)
    return selection, RowKind(f"{nodes.what}, pooled", mask, groups, widest=widest)


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


def _keep_edges(
    context: BatchContext,
    selection: Selection,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    layer: TopKPooling | SAGPooling,
) -> tuple[Tensor, Tensor | None]:
    """Edges between kept nodes first, in their order; the others become edges of the last node."""
    edges, nodes = edge_index.size(1), len(selection.perm)
    real = context.mask_of(edge_index[0])
    keep_mask = real & selection.keep_mask[edge_index[0]] & selection.keep_mask[edge_index[1]]
    # Asked by another module than for nodes, of which it may keep as many.
    count = context.free_size(_rows_for(context, keep_mask, edges) + 1, layer.select)
    place = torch.where(keep_mask, keep_mask.cumsum(0) - 1, count)
    moved = selection.place[edge_index]
    out_index = moved.new_full((2, count + 1), nodes - 1).index_copy(1, place, moved)[:, :count]
    mask = torch.arange(count, device=real.device) < keep_mask.sum()
    context.register(count, RowKind("edges, pooled", mask, nodes))
    if edge_attr is None:
        return out_index, None
    empty = edge_attr.new_zeros(count + 1, *edge_attr.shape[1:])
    return out_index, empty.index_copy(0, place, edge_attr)[:count]
