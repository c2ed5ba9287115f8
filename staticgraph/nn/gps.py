"""GPSConv whose global attention has fixed shapes.

Stock ``GPSConv`` (Rampasek et al. 2022, arXiv 2205.12454) calls ``to_dense_batch`` without sizes
and then indexes with a mask: two host reads a layer, so a CUDA graph cannot record it. Here the
block is ``[graphs, M]`` with gathers both ways, the projections run over nodes and not over the
block's empty places, and the weights are those of the layer's own ``MultiheadAttention``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GPSConv
from torch_geometric.nn.attention import PerformerAttention

from staticgraph.errors import NotStatic
from staticgraph.nn.context import BatchContext


class StaticGPSConv(GPSConv):
    """``GPSConv``: attention over a block of the bucket's shape, with the same state.

    Raises:
        NotStatic: attention other than multi-head, or with options whose result depends on the
            width of the block.
    """

    _staticgraph: BatchContext

    def forward(
        self, x: Tensor, edge_index: Any, batch: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        if self._staticgraph.batch is None:
            return super().forward(x, edge_index, batch, **kwargs)
        if batch is None:
            raise NotStatic(
                "GPSConv was called without batch, so its attention would join all graphs: "
                "pass batch=batch"
            )
        out = self._residual(self._attend(x), x, self.norm2, batch)
        if self.conv is not None:
            local = self.conv(x, edge_index, **kwargs)
            out = self._residual(local, x, self.norm1, batch) + out
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
        if attn.bias_k is not None or attn.add_zero_attn or attn.in_proj_weight is None:
            raise NotStatic(
                "GPSConv's attention has bias_k, add_zero_attn or separate key and value sizes: "
                "leave them out of attn_kwargs"
            )
        classed = self._staticgraph.classed()
        blocks = classed.to_blocks(F.linear(x, attn.in_proj_weight, attn.in_proj_bias))
        outs = []
        for qkv, attendable in zip(blocks, classed.attendable, strict=True):
            q, k, v = qkv.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
            out = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=attendable[:, None, None, :],
                dropout_p=attn.dropout if self.training else 0.0,
            )
            outs.append(out.transpose(1, 2).flatten(2))
        return attn.out_proj(classed.to_nodes(outs))
