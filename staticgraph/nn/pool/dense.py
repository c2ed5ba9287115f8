"""Pools over dense blocks of fixed shape: DiffPool, MinCut, DMoN.

In a bucket's block some graphs are padding: no nodes, no edges. Stock PyG divides by their sums,
takes the root of them, which makes the gradient of every weight NaN, and counts them in the means
of its auxiliary losses. Here a padding graph gets one node with a self-loop, so that everything
stays finite, and the losses are means over the real graphs, as over the unpadded batch.

Source: the formulas are those of torch_geometric.nn.dense (diff_pool, mincut_pool, dmon_pool).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import DMoNPooling, MemPooling, dense_diff_pool, dense_mincut_pool

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.dispatch import stock

_stock_diff_pool = stock(dense_diff_pool)
_stock_mincut_pool = stock(dense_mincut_pool)
_stock_kl_loss = stock(MemPooling.kl_loss)
_EPS = 1e-15  # PyG's, in all three


class _Block:
    """``x`` ``[B, n, F]``, ``adj`` ``[B, n, n]`` and ``mask`` ``[B, n, 1]``, with a self-loop at
    the first node of padding graphs, and which graphs are real."""

    def __init__(
        self, context: BatchContext, real: Tensor, x: Tensor, adj: Tensor, mask: Tensor | None
    ) -> None:
        self.real = real
        padding = ~real[:, None, None]
        nodes = x.size(1)
        first = torch.arange(nodes, device=x.device) == 0
        if mask is None:
            mask = x.new_ones(x.shape[:2], dtype=torch.bool)
        mask = mask.view(*x.shape[:2], 1)
        # The width of PyG's block: ``max_num_nodes`` if given, else nodes of the widest real graph.
        places = context.places_in(x.size(0), nodes)
        places = mask if places is None else places[:, :, None]
        self.width = torch.where(padding, False, places).sum(1).max().clamp(min=1)
        self.mask = torch.where(padding, first[:, None], mask).to(x.dtype)
        if mask.dtype == torch.bool:
            self.x = torch.where(padding | ~mask, 0, x)
        else:  # a mask that weighs nodes
            self.x = torch.where(padding, 0, x) * mask
        self.adj = torch.where(padding, (first[:, None] & first).to(adj), adj)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of ``[B]`` values over the real graphs, 0-dim."""
        return torch.where(self.real, values, 0).sum() / self.graphs

    @property
    def graphs(self) -> Tensor:
        """The number of real graphs, at least 1, 0-dim."""
        return self.real.sum().clamp(min=1)


def static_diff_pool(
    context: BatchContext,
    x: Tensor,
    adj: Tensor,
    s: Tensor,
    mask: Tensor | None = None,
    normalize: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """PyG's ``dense_diff_pool``: pooled ``[G, clusters, F]``, ``[G, clusters, clusters]`` and two
    losses, over real graphs."""
    real = _padded(context, x)
    if real is None:
        return _stock_diff_pool(x, adj, s, mask, normalize)
    block = _Block(context, real, x, adj, mask)
    s = torch.softmax(s, dim=-1) * block.mask
    context.lay_out(s.size(0), s.size(2))
    link = torch.linalg.vector_norm(block.adj - s @ s.transpose(1, 2), dim=(1, 2))
    link_loss = torch.linalg.vector_norm(torch.where(real, link, 0))
    if normalize:
        link_loss = link_loss / (block.graphs * block.width * block.width)
    entropy = (-s * torch.log(s + _EPS)).sum((1, 2))
    return (*_pooled(block, s), link_loss, block.mean(entropy) / block.width)


def static_mincut_pool(
    context: BatchContext,
    x: Tensor,
    adj: Tensor,
    s: Tensor,
    mask: Tensor | None = None,
    temp: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """PyG's ``dense_mincut_pool``: pooled ``[G, clusters, F]``, ``[G, clusters, clusters]`` and two
    losses, over real graphs."""
    real = _padded(context, x)
    if real is None:
        return _stock_mincut_pool(x, adj, s, mask, temp)
    block = _Block(context, real, x, adj, mask)
    s = torch.softmax(s / temp, dim=-1) * block.mask
    context.lay_out(s.size(0), s.size(2))
    out, out_adj = _pooled(block, s)
    inside = (s.square() * block.adj.sum(2, keepdim=True)).sum((1, 2))
    cut = -(_trace(out_adj) / inside)
    return out, _normalised(out_adj), block.mean(cut), block.mean(_orthogonality(s))


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Maps PyG's dense pools to equivalents over a block with padding graphs."""
    return {
        dense_diff_pool: static_diff_pool,
        dense_mincut_pool: static_mincut_pool,
        MemPooling.kl_loss: static_kl_loss,
    }


class StaticDMoNPooling(DMoNPooling):
    """``DMoNPooling`` over a block with padding graphs; the same six results."""

    _staticgraph: BatchContext

    def forward(
        self, x: Tensor, adj: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """``x`` ``[B, n, F]``, ``adj`` ``[B, n, n]``, ``mask`` ``[B, n]`` bool."""
        real = None if self._staticgraph.batch is None else _padded(self._staticgraph, x)
        if real is None:
            return super().forward(x, adj, mask)
        block = _Block(self._staticgraph, real, x, adj, mask)
        s = F.dropout(self.mlp(x), self.dropout, training=self.training)
        s = torch.softmax(s, dim=-1) * block.mask
        self._staticgraph.lay_out(s.size(0), s.size(2))
        out, out_adj = _pooled(block, s)
        degrees = block.adj.sum(2, keepdim=True) * block.mask
        edges = degrees.sum((1, 2)) / 2
        by_cluster = (s * degrees).sum(1)
        expected = by_cluster.square().sum(1) / 2 / edges
        spectral = -(_trace(out_adj) - expected) / 2 / edges
        sizes = torch.linalg.vector_norm(s.sum(1), dim=1)
        # PyG divides sizes [B] by nodes [B, 1], so the mean is over all pairs of graphs.
        shares = block.mean(sizes) * block.mean(1 / block.mask.sum((1, 2)))
        balance = shares * s.size(2) ** 0.5 - 1
        losses = block.mean(spectral), block.mean(_orthogonality(s)), balance
        return s, F.selu(out), _normalised(out_adj), *losses


def _padded(context: BatchContext, x: Tensor) -> Tensor | None:
    """``[B]`` bool, which graphs of a block are real; None unless it is a block of the batch's
    graphs, padding included."""
    batch = context.present
    return batch.graph_mask if x.dim() == 3 and x.size(0) == batch.num_graphs else None


def static_kl_loss(context: BatchContext, S: Tensor) -> Tensor:  # the name is PyG's
    """``MemPooling.kl_loss``: the mean over real graphs; padding graphs have clusters too."""
    real = _padded(context, S)
    if real is None:
        return _stock_kl_loss(S)
    # Uniform assignment in padding graphs: both sides of the divergence are then the same.
    S = torch.where(real[:, None, None], S, 1 / S.size(2))
    return _stock_kl_loss(S) * len(S) / real.sum().clamp(min=1)


def _pooled(block: _Block, s: Tensor) -> tuple[Tensor, Tensor]:
    turned = s.transpose(1, 2)
    return turned @ block.x, turned @ block.adj @ s


def _trace(x: Tensor) -> Tensor:
    return x.diagonal(dim1=1, dim2=2).sum(1)


def _orthogonality(s: Tensor) -> Tensor:
    """``[B]``: how far the clusters of each graph are from orthogonal and balanced."""
    ss = s.transpose(1, 2) @ s
    ss = ss / torch.linalg.vector_norm(ss, dim=(1, 2), keepdim=True)
    even = torch.eye(s.size(2), dtype=s.dtype, device=s.device) / s.size(2) ** 0.5
    return torch.linalg.vector_norm(ss - even, dim=(1, 2))


def _normalised(out_adj: Tensor) -> Tensor:
    """Removes self-loops and divides by the square roots of both degrees."""
    loops = torch.eye(out_adj.size(1), dtype=torch.bool, device=out_adj.device)
    out_adj = torch.where(loops, 0, out_adj)
    root = out_adj.sum(2).sqrt()[:, None] + _EPS
    return out_adj / root / root.transpose(1, 2)
