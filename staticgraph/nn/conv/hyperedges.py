"""Convolutions over hyperedges, whose number stock PyG reads from their index."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import HypergraphConv

from staticgraph.nn.context.batch_context import BatchContext


class StaticHypergraphConv(HypergraphConv):
    """``HypergraphConv``: as many hyperedges as there are nodes, unless the number is given."""

    _staticgraph: BatchContext

    def forward(
        self,
        x: Tensor,
        hyperedge_index: Tensor,
        hyperedge_weight: Tensor | None = None,
        hyperedge_attr: Tensor | None = None,
        num_edges: int | None = None,
    ) -> Tensor:
        """``[N, F]`` to ``[N, out]``; the number of hyperedges is ``num_edges``, else the number of
        rows of their weights or attributes, else the number of nodes."""
        if self._staticgraph.batch is not None and num_edges is None:
            carried = hyperedge_weight if hyperedge_weight is not None else hyperedge_attr
            num_edges = x.size(0) if carried is None else carried.size(0)
        return super().forward(x, hyperedge_index, hyperedge_weight, hyperedge_attr, num_edges)
