"""Attention layers over dense blocks whose stock result depends on the width of the block.

Performer's normaliser sums a kernel over all places of a row, including empty ones (a zero key
still counts ``epsilon``); SGFormer adds ``M`` times the values: their result for one graph depends
on the largest graph in the batch. To equal PyG on the unpadded batch, places beyond the largest
*real* graph must not count. Where the block is exactly that wide (outside a compiled step), the
stock layer runs. Formulas: Choromanski et al. 2021, equation 4; Wu et al. 2023 (SGFormer), equation
6; Deng et al. 2024 (Polynormer), equation 7, each as in PyG 2.8.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention
from torch_geometric.nn.attention.performer import generalized_kernel

from staticgraph.nn.context.batch_context import BatchContext


def _largest(context: BatchContext, mask: Tensor | None) -> Any:
    """As many places as a block of the unpadded batch would have: those of the largest real group
    if a ``[graphs, width]`` mask says which hold a row, otherwise those of the largest graph."""
    return context.largest() if mask is None else mask.sum(1).max().clamp(min=1)


def _is_counted(largest: Any, x: Tensor) -> Tensor:
    """``[M, 1, 1]`` bool: whether a place of ``[graphs, M, F]`` is one of these."""
    return (torch.arange(x.size(1), device=x.device) < largest)[:, None, None]


class StaticPerformerAttention(PerformerAttention):
    """``PerformerAttention``; keys beyond the largest real group do not count."""

    _staticgraph: BatchContext

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[graphs, width, F]`` to the same; places beyond the largest real group do not
        contribute."""
        context = self._staticgraph
        if context.batch is None or context.free_sizes(x):
            return super().forward(x, mask)
        graphs, width, _ = x.shape

        def by_head(rows: Tensor) -> Tensor:
            """``[graphs, width, heads * D]`` to ``[graphs, heads, width, D]``."""
            return rows.view(graphs, width, self.heads, -1).transpose(1, 2)

        counted = _is_counted(_largest(context, mask), x)[:, 0]
        matrix, kernel = self.fast_attn.projection_matrix, self.fast_attn.kernel
        assert isinstance(matrix, Tensor)
        q = generalized_kernel(by_head(self.q(x)), matrix, kernel)
        k = generalized_kernel(by_head(self.k(x)), matrix, kernel)
        k, v = torch.where(counted, k, 0), by_head(self.v(x))
        if mask is not None:
            v = torch.where(mask[:, None, :, None], v, 0)
        norm = q @ k.sum(-2).unsqueeze(-1)
        out = (q @ (k.transpose(-2, -1) @ v)) / norm
        return self.dropout(self.attn_out(out.transpose(1, 2).flatten(2)))


class StaticSGFormerAttention(SGFormerAttention):
    """``SGFormerAttention``; its ``N`` is the largest real group."""

    _staticgraph: BatchContext

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[graphs, width, F]`` to ``[graphs, width, C]``; places beyond the largest real group do
        not contribute."""
        context = self._staticgraph
        if context.batch is None or context.free_sizes(x):
            return super().forward(x, mask)
        graphs, width, _ = x.shape
        shape = (graphs, width, self.heads, self.head_channels)
        q, k, v = (layer(x).view(shape) for layer in (self.q, self.k, self.v))
        if mask is not None:
            v = torch.where(mask[:, :, None, None], v, 0)
        q, k = (torch.where(t == 0, 1e-6, t) for t in (q, k))
        q, k = (t / torch.linalg.norm(t, ord=2, dim=-1, keepdim=True) for t in (q, k))
        largest = _largest(context, mask)
        k = torch.where(_is_counted(largest, x), k, 0)
        out = torch.einsum("bnhm,bhmd->bnhd", q, torch.einsum("blhm,blhd->bhmd", k, v))
        norm = torch.einsum("bnhm,bhm->bnh", q, k.sum(1)).unsqueeze(-1)
        return ((out + largest * v) / (norm + largest)).mean(dim=2)


class StaticPolynormerAttention(PolynormerAttention):
    """``PolynormerAttention``; keys beyond the largest real group do not count."""

    _staticgraph: BatchContext

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[graphs, width, F]`` to the same; places beyond the largest real group do not
        contribute."""
        context = self._staticgraph
        if context.batch is None or context.free_sizes(x):
            return super().forward(x, mask)
        graphs, width, _ = x.shape
        shape = (graphs, width, self.head_channels, self.heads)
        k = self.k(x).sigmoid().view(shape)
        q = k if self.qk_shared else self.q(x).sigmoid().view(shape)
        k = torch.where(_is_counted(_largest(context, mask), x), k, 0)
        v = self.v(x).view(shape)
        if mask is not None:
            v = torch.where(mask[:, :, None, None], v, 0)
        out = torch.einsum("bndh,bdmh->bnmh", q, torch.einsum("bndh,bnmh->bdmh", k, v))
        norm = torch.einsum("bndh,bdh->bnh", q, k.sum(1)).unsqueeze(2)
        out = (out / (norm + 1e-6)).reshape(graphs, width, -1)
        out = self.lns(out) * (self.h_lins(x) + self.beta)
        return self.dropout(F.relu(self.lin_out(out)))
