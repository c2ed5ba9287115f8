"""Transformer convolution over the batch's own edges, with one operator for the attention.

Products of queries and keys, softmax and weighted sum are one operator (:func:`dot_attention`),
where stock code makes ten arrays of ``[E, H * C]``. Not supported: dropout of attention weights in
training, and returning them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import TransformerConv

from staticgraph.kernels.dot_attention import dot_attention
from staticgraph.nn.fused.conv import SUM, obstacle
from staticgraph.nn.fused.layer import Fused


class FusedTransformerConv(Fused, TransformerConv):
    """Attention by dot products (Shi et al. 2021, arXiv 2009.03509)."""

    reads_pointers = True

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Any,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """``[N, F]`` to ``[N, H * C]``, or ``[N, C]``: scores, softmax and weighted sum in one
        operator."""
        if not self.use(self._obstacle(x, edge_index, edge_attr, return_attention_weights)):
            return super().forward(x, edge_index, edge_attr, return_attention_weights)
        batch = self.batch
        assert batch is not None
        query, key, value = self.lin_query(x), self.lin_key(x), self.lin_value(x)
        out = dot_attention(
            query,
            key,
            value,
            batch.edge_index[0],
            batch.edge_index[1],
            batch.row_ptr,
            batch.col_ptr,
            batch.transpose,
            heads=self.heads,
            scale=self.out_channels**-0.5,
            edge=None if self.lin_edge is None else self.lin_edge(edge_attr),
        )
        if not self.concat:
            out = out.view(-1, self.heads, self.out_channels).mean(dim=1)
        return self._beside_the_root(out, x)

    def _obstacle(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None, returned: Any
    ) -> str | None:
        reason = obstacle(self, self.batch, x, edge_index, None, node_dim=0, aggr=SUM)
        if reason is not None:
            return reason
        if returned is not None:
            return "attention weights are returned"
        if self.training and self.dropout:
            return "attention weights are dropped in training"
        if (edge_attr is None) != (self.lin_edge is None):
            return "edge_attr without edge_dim, or the other way round"
        return None

    def _beside_the_root(self, out: Tensor, x: Tensor) -> Tensor:
        """Adds the node's own row, or mixes it in by a gate."""
        if not self.root_weight:
            return out
        root = self.lin_skip(x)
        if self.lin_beta is None:
            return out + root
        beta = self.lin_beta(torch.cat([out, root, out - root], dim=-1)).sigmoid()
        return beta * root + (1 - beta) * out
