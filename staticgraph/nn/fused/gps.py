"""GPS with its gathers, residual sums and norms joined (Rampasek et al. 2022, arXiv 2205.12454).

The static form of the layer is kept; here queries, keys and values go from nodes to the attention
block in one pass, and every sum stands inside the norm before or after it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import BatchNorm

from staticgraph.kernels.head_blocks import nodes_of_block, qkv_blocks
from staticgraph.nn.attention_paths import attend, setting_of
from staticgraph.nn.dense import DenseLayout
from staticgraph.nn.fused.layer import Fused
from staticgraph.nn.fused.norm import FusedBatchNorm1d
from staticgraph.nn.gps import StaticGPSConv


class FusedGPSConv(Fused, StaticGPSConv):
    """Takes the place of :class:`StaticGPSConv`, with the same state."""

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, **kwargs: object
    ) -> Tensor:
        norms = [_inner(norm) for norm in (self.norm1, self.norm2, self.norm3)]
        if not self.use(self._obstacle(batch, norms)):
            return StaticGPSConv.forward(self, x, edge_index, batch, **kwargs)
        first, second, third = norms
        assert first is not None
        assert second is not None
        assert third is not None
        out = second.joined(self._dropped(self._attended(x)), addend=x)
        if self.conv is not None:
            local = self._dropped(self.conv(x, edge_index, **kwargs))
            out = first.joined(local, addend=x, residual=out)
        return third.joined(self.mlp(out), addend=out)

    def _obstacle(self, batch: Tensor | None, norms: list[FusedBatchNorm1d | None]) -> str | None:
        bound = self.batch
        if bound is None or batch is not bound.batch:
            return "no batch is bound, or batch is not its own"
        if any(norm is None for norm in norms):
            return "its norms are not BatchNorm, or have hooks"
        attn = self.attn
        stock = isinstance(attn, torch.nn.MultiheadAttention) and attn.in_proj_weight is not None
        if not stock or attn.bias_k is not None or attn.add_zero_attn:
            return "its attention is not plain multi-head attention"
        return None

    def _dropped(self, h: Tensor) -> Tensor:
        return F.dropout(h, p=self.dropout, training=self.training)

    def _attended(self, x: Tensor) -> Tensor:
        """``[N, C]`` -> ``[N, C]``: multi-head attention among the nodes of each graph."""
        attn, context = self.attn, self._staticgraph
        assert isinstance(attn, torch.nn.MultiheadAttention)
        setting = setting_of(
            attn, x.device.type, x.dtype, attn.training, torch.compiler.is_compiling()
        )
        if context.attention_path(setting).name != "dense":
            return attend(context, attn, x)
        layout = context.dense()
        rows = F.linear(x, attn.in_proj_weight, attn.in_proj_bias)
        q, k, v = qkv_blocks(
            rows, layout.node_of_place, layout.place_of_node, layout.graphs, attn.num_heads
        )
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=_attendable(layout),
            dropout_p=attn.dropout if self.training else 0.0,
        )
        return attn.out_proj(nodes_of_block(out, layout.place_of_node, layout.node_of_place))


def _inner(norm: torch.nn.Module | None) -> FusedBatchNorm1d | None:
    """The fused norm inside PyG's BatchNorm; None where there is another, or a hook to call."""
    if not isinstance(norm, BatchNorm) or norm.allow_single_element:
        return None
    hooked = norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks
    inner = norm.module
    return inner if isinstance(inner, FusedBatchNorm1d) and not hooked else None


def _attendable(layout: DenseLayout) -> Tensor:
    """The mask of a layout, made once for all layers: it is kept at the tensor it comes from."""
    if torch.compiler.is_compiling():
        return layout.attendable[:, None, None, :]  # the compiler makes it once by itself
    kept = getattr(layout.occupied, "_staticgraph_attendable", None)
    if kept is None:
        kept = layout.attendable[:, None, None, :]
        layout.occupied._staticgraph_attendable = kept  # pyright: ignore[reportAttributeAccessIssue]
    return kept
