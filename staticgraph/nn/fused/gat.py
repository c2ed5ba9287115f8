"""GAT and GATv2 over the batch's own edges: scores, softmax and weighted sum in registers.

Stock layers rebuild the edges with self-loops and make a dozen arrays of ``[E + N, ...]``. Here the
self-loop of a node is a term of the softmax that reads the node's own row
(:func:`neighbour_attention`), existing self-loops are left out, as by PyG's ``remove_self_loops``,
and an edge's contribution to a score is one product with a folded matrix.

Not supported: dropout of attention weights in training, and returning them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.hooks import unhooked
from staticgraph.kernels.head_products import head_products
from staticgraph.kernels.neighbour_attention import neighbour_attention
from staticgraph.kernels.pair_score import pair_score
from staticgraph.kernels.segments import segment_sum
from staticgraph.nn.fused.conv import SUM, obstacle
from staticgraph.nn.fused.layer import Fused


class _Attending(Fused):
    """The code that both layers share."""

    reads_pointers = True

    def _obstacle(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None, size: Any, returned: Any
    ) -> str | None:
        assert isinstance(self, GATConv | GATv2Conv)
        reason = obstacle(self, self.batch, x, edge_index, size, node_dim=0, aggr=SUM)
        if reason is not None:
            return reason
        if returned is not None:
            return "attention weights are returned"
        if self.training and self.dropout:
            return "attention weights are dropped in training"
        if edge_attr is None:
            return None
        if self.lin_edge is None:
            return "edge_attr without edge_dim"
        if not unhooked(self.lin_edge):
            return "hooks of lin_edge would not be called, or it has no weights yet"
        if self.add_self_loops and self.fill_value in ("min", "max", "mul"):
            return f"fill_value={self.fill_value!r} has no fused form"
        return None

    def _loop_attr(self, batch: StaticBatch, edge_attr: Tensor) -> Tensor:
        """``[E, D]`` -> ``[N, D]``: the attributes that PyG gives the self-loops that it adds."""
        assert isinstance(self, GATConv | GATv2Conv)
        fill, size = self.fill_value, (batch.num_nodes, edge_attr.size(1))
        if fill is None or isinstance(fill, int | float):
            return edge_attr.new_full(size, 1.0 if fill is None else fill)
        if isinstance(fill, Tensor):
            return fill.to(edge_attr).view(-1, *fill.shape[-1:]).expand(size)

        def make() -> tuple[Tensor, Tensor]:
            """``[E, 1]``: whether an edge is no self-loop; ``[N, 1]``: one over their count."""
            kept = (batch.edge_index[0] != batch.edge_index[1]).unsqueeze(1)
            count = segment_sum(kept.to(edge_attr.dtype), batch.row_ptr)
            return kept, count.clamp(min=1).reciprocal()

        kept, share = self._staticgraph.once(("loops", edge_attr.dtype), make)
        total = segment_sum(torch.where(kept, edge_attr, 0), batch.row_ptr)
        return total * share if fill == "mean" else total

    def _finished(self, out: Tensor, residual: Tensor | None) -> Tensor:
        """Concatenates or averages the heads, then adds the residual and the bias."""
        assert isinstance(self, GATConv | GATv2Conv)
        if not self.concat:
            out = out.view(-1, self.heads, self.out_channels).mean(dim=1)
        out = out if residual is None else out + residual
        return out if self.bias is None else out + self.bias


class FusedGATConv(_Attending, GATConv):
    """Attention by the sum of one number per node (Velickovic et al. 2018, arXiv 1710.10903)."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Any,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        size: Any = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """``[N, F]`` to ``[N, H * C]``, or ``[N, C]``: softmax and weighted sum in one operator."""
        edges = None if self.lin_edge is None else edge_attr  # the stock code ignores it, too
        reason = self._obstacle(x, edge_index, edges, size, return_attention_weights)
        if reason is None and self.lin is None:
            reason = "sources and destinations have weights of their own"
        if not self.use(reason):
            return super().forward(x, edge_index, edge_attr, size, return_attention_weights)
        batch = self.batch
        assert batch is not None
        assert self.lin is not None
        residual = None if self.res is None else self.res(x)
        rows = self.lin(x)
        with full_precision(rows):
            pair = self._pair(rows)
            edge, own = self._edges(batch, edges)
        out = neighbour_attention(
            rows,
            batch.edge_index[0],
            batch.edge_index[1],
            batch.row_ptr,
            batch.col_ptr,
            batch.transpose,
            heads=self.heads,
            pair=pair,
            edge=edge,
            own=own,
            slope=self.negative_slope,
            loops=self.add_self_loops,
        )
        return self._finished(out, residual)

    def _pair(self, rows: Tensor) -> Tensor:
        """``[H, N, 2]``: each node's part of a score, as a source and as a destination."""
        return head_products(rows, torch.cat([self.att_src, self.att_dst]))

    def _edges(
        self, batch: StaticBatch, edge_attr: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """``[E, H]`` and ``[N, H]``: what edges and self-loops add to their scores.

        The product with the attention vector is applied to the weights, ``[H, C, D]``, and not to
        the projected edges, ``[E, H * C]``.
        """
        if edge_attr is None:
            return None, None
        assert self.lin_edge is not None
        edge_attr = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
        weight = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        weight = (weight * self.att_edge.view(self.heads, -1, 1)).sum(1).t()
        edge_attr = edge_attr.to(torch.promote_types(edge_attr.dtype, weight.dtype))
        weight = weight.to(edge_attr.dtype)
        own = self._loop_attr(batch, edge_attr) @ weight if self.add_self_loops else None
        return edge_attr @ weight, own


class FusedGATv2Conv(_Attending, GATv2Conv):
    """Attention by a product with both rows' sum (Brody et al. 2022, arXiv 2105.14491)."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Any,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """``[N, F]`` to ``[N, H * C]``, or ``[N, C]``: scores in one operator, softmax and weighted
        sum in another."""
        reason = self._obstacle(x, edge_index, edge_attr, None, return_attention_weights)
        if not self.use(reason):
            return super().forward(x, edge_index, edge_attr, return_attention_weights)
        batch = self.batch
        assert batch is not None
        residual = None if self.res is None else self.res(x)
        left = self.lin_l(x)
        right = left if self.share_weights else self.lin_r(x)
        edge = own = None
        if edge_attr is not None:
            assert self.lin_edge is not None
            edge_attr = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
            edge = self.lin_edge(edge_attr)
            if self.add_self_loops:
                own = self.lin_edge(self._loop_attr(batch, edge_attr))
        where = (
            batch.edge_index[0],
            batch.edge_index[1],
            batch.row_ptr,
            batch.col_ptr,
            batch.transpose,
        )
        score, loop = pair_score(
            left,
            right,
            self.att.view(self.heads, -1),
            *where,
            edge=edge,
            own=own,
            slope=self.negative_slope,
        )
        out = neighbour_attention(
            left,
            *where,
            heads=self.heads,
            edge=score,
            own=loop if self.add_self_loops else None,
            loops=self.add_self_loops,
        )
        return self._finished(out, residual)


def full_precision(rows: Tensor) -> torch.autocast:
    """Disables autocast, which would round the small scores: stock code adds them in float32."""
    return torch.autocast(rows.device.type, enabled=False)
