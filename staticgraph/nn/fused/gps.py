"""GPS with fused gathers, residual sums and norms (Rampasek et al. 2022, arXiv 2205.12454).

This extends the layer's static form; here attention is one kernel over rows of nodes, or queries,
keys and values go from nodes to the attention block in one pass, and every sum is computed in the
norm before or after it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import BatchNorm

from staticgraph.internals.hooks import unhooked, user_unhooked
from staticgraph.nn.attention.paths import attend, by_blocks, by_kernel, setting_of
from staticgraph.nn.context.choosing import device_type
from staticgraph.nn.conv.gps import StaticGPSConv
from staticgraph.nn.fused.conv import handing_on
from staticgraph.nn.fused.layer import Fused
from staticgraph.nn.fused.linear import FusedSequential, product, product_handing_on
from staticgraph.nn.fused.norm import FusedBatchNorm1d

# The layer's dropout sites: 0 and 1 after its two branches, 2 for the attention weights.
ATTENTION_SITE = 2


class FusedGPSConv(Fused, StaticGPSConv):
    """Takes the place of :class:`StaticGPSConv`, with the same state."""

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, **kwargs: object
    ) -> Tensor:
        """``[N, F]`` to the same, with residual sums and norms fused."""
        norms = self._norms()
        plain = not kwargs.keys() - {"edge_attr"}
        if not self.use(self._obstacle(batch, norms)) or not plain:
            return StaticGPSConv.forward(self, x, edge_index, batch, **kwargs)
        edges = kwargs.get("edge_attr")
        assert edges is None or isinstance(edges, Tensor)
        return self._run(x, edge_index, norms, edges)

    def _norms(self) -> list[FusedBatchNorm1d | None]:
        return [_inner(norm) for norm in (self.norm1, self.norm2, self.norm3)]

    def _run(
        self,
        x: Tensor,
        edge_index: Tensor,
        norms: list[FusedBatchNorm1d | None],
        edges: Tensor | None,
    ) -> Tensor:
        first, second, third = norms
        assert first is not None
        assert second is not None
        assert third is not None
        attended, x = self._attended(x)
        local = None
        if self.conv is not None:
            local, x = handing_on(self.conv, x, edge_index, edges)
        if local is None:
            out, _ = self._normed(second, attended, x, None, 0)
        else:
            out, x = self._normed(second, attended, x, None, 0, more=True)
            out, _ = self._normed(first, local, x, out, 1)
        mlp = self.mlp
        if isinstance(mlp, FusedSequential):
            h, out = mlp.handing_on(out)
        else:
            h = mlp(out)
        return third.joined(h, addend=out)

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
        if not user_unhooked(attn):
            return "hooks of its attention would not be called"
        return None

    def _normed(
        self,
        norm: FusedBatchNorm1d,
        h: Tensor,
        x: Tensor,
        residual: Tensor | None,
        site: int,
        more: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """``residual + norm(dropout(h) + x)``, and ``x`` for later readers (see
        :func:`handing_on`), replaced if ``more``."""
        p = self.dropout
        if self.training and 0 < p < 1:
            dropped = self.dropped(h, site, p, residual=x)
            return norm.joined(dropped, residual=residual), x
        if self.training and p:
            h = F.dropout(h, p=p)
        if more:
            return norm.handing_on(h, x, residual)
        return norm.joined(h, addend=x, residual=residual), x

    def _attended(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``[N, C]`` -> ``[N, C]``: multi-head attention among the nodes of each graph; and ``x``
        for later readers (see :func:`handing_on`)."""
        attn, context = self.attn, self._staticgraph
        assert isinstance(attn, torch.nn.MultiheadAttention)
        setting = setting_of(
            attn, device_type(x), x.dtype, attn.training, torch.compiler.is_compiling(), True
        )
        name = context.attention_path(setting).name
        if name == "kernel":
            rows, x = product_handing_on(x, attn.in_proj_weight, attn.in_proj_bias)
            p = setting.dropout
            seed = self.seed(x.device) if p else None
            out = by_kernel(context, attn, rows, p, seed, self.site(ATTENTION_SITE))
            return product(out, attn.out_proj.weight, attn.out_proj.bias), x
        if name not in ("dense", "size-classed"):
            return attend(context, attn, x), x
        rows, x = product_handing_on(x, attn.in_proj_weight, attn.in_proj_bias)
        back = by_blocks(context, name, attn, rows, attn.dropout if self.training else 0.0)
        return product(back, attn.out_proj.weight, attn.out_proj.bias), x


def _inner(norm: torch.nn.Module | None) -> FusedBatchNorm1d | None:
    """The fused norm inside PyG's BatchNorm; None if it is another norm, or has hooks to call."""
    if not isinstance(norm, BatchNorm) or norm.allow_single_element:
        return None
    inner = norm.module
    if not isinstance(inner, FusedBatchNorm1d) or not (unhooked(norm) and unhooked(inner)):
        return None
    return inner
