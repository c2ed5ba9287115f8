"""GPSConv whose global attention has fixed shapes.

Stock ``GPSConv`` (Rampasek et al. 2022, arXiv 2205.12454) calls ``to_dense_batch`` without sizes
and then indexes with a mask: two host reads per layer, so a CUDA graph cannot record it. Here the
projections run over nodes and not over the empty places of a block, the weights are those of the
layer's own ``MultiheadAttention``, and the attention path is chosen per bucket
(:mod:`staticgraph.nn.attention.paths`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GPSConv
from torch_geometric.nn.attention import PerformerAttention

from staticgraph.errors import NotStatic
from staticgraph.internals.hooks import user_unhooked
from staticgraph.nn.attention.paths import attend
from staticgraph.nn.context.batch_context import BatchContext


class StaticGPSConv(GPSConv):
    """``GPSConv``: attention over fixed shapes, with the same state.

    Raises:
        NotStatic: attention other than multi-head or Performer, separate key and value sizes, hooks
            on the attention, or a requested path that is impossible here.
    """

    _staticgraph: BatchContext

    _staticgraph_attends = True  # read by steps.attention_choices

    def forward(
        self, x: Tensor, edge_index: Any, batch: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """``[N, F]`` to the same; attention within each graph, on the path chosen for the bucket.

        Raises:
            NotStatic: called without ``batch``, so the attention would join all graphs.
        """
        context = self._staticgraph
        if context.batch is None:
            return super().forward(x, edge_index, batch, **kwargs)
        if batch is None:
            raise NotStatic(
                "GPSConv was called without batch, so its attention would join all graphs: "
                "pass batch=batch"
            )
        if context.rows_of(batch).counted != "node":  # those a pool chose: to_dense_batch's block
            return super().forward(x, edge_index, batch, **kwargs)
        local = None
        if self.conv is not None:  # first, as in PyG, so that a seed gives the same numbers
            local = self._residual(self.conv(x, edge_index, **kwargs), x, self.norm1, batch)
        out = self._residual(self._attend(x), x, self.norm2, batch)
        out = out if local is None else local + out
        return self._norm(self.norm3, out + self.mlp(out), batch)

    def _residual(
        self, h: Tensor, x: Tensor, norm: torch.nn.Module | None, batch: Tensor
    ) -> Tensor:
        h = F.dropout(h, p=self.dropout, training=self.training)
        return self._norm(norm, h + x, batch)

    def _norm(self, norm: torch.nn.Module | None, h: Tensor, batch: Tensor) -> Tensor:
        if norm is None:
            return h
        return norm(h, batch=batch) if self.norm_with_batch else norm(h)

    def _attend(self, x: Tensor) -> Tensor:
        """``[N, C]`` -> ``[N, C]``: attention among the nodes of each graph."""
        attn = self.attn
        if isinstance(attn, PerformerAttention):
            layout = self._staticgraph.dense()
            block = attn(layout.to_dense(x), layout.occupied)
            return layout.to_nodes(block)
        if not isinstance(attn, torch.nn.MultiheadAttention):
            raise NotStatic(
                f"GPSConv with attn_type={self.attn_type!r} has no static form: use "
                "attn_type='multihead' or 'performer'"
            )
        if attn.in_proj_weight is None:
            raise NotStatic(
                "GPSConv's attention has separate key and value sizes: leave kdim and vdim out of "
                "attn_kwargs"
            )
        if not user_unhooked(attn):
            raise NotStatic(
                "GPSConv's attention has hooks, which its static form would not call, since it "
                "reads the attention's weights: hook the GPSConv itself"
            )
        return attend(self._staticgraph, attn, x)
