"""Layers that depend on counts in their index, or on whether an edge is a self-loop, without masks.

Stock PyG selects the nodes of each degree with a mask, and writes the diagonal through one. Here
every choice is made over all rows with ``torch.where``: a node keeps the result of its degree's
layer, and the weight of an edge is changed where it is a self-loop. The number of hyperedges, which
stock PyG reads from their index, follows from the rows that they carry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import ChebConv, ClusterGCNConv, HypergraphConv, MFConv
from torch_geometric.nn.conv import cheb_conv  # the binding that is replaced in a step
from torch_geometric.utils import degree

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.utils.self_loops import static_add_self_loops, static_remove_self_loops


class StaticMFConv(MFConv):
    """``MFConv``: every degree's layer over all nodes, each node keeps that of its degree; over the
    nodes of its degree alone where shapes need not be fixed."""

    _staticgraph: BatchContext

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        """``[N, F]`` to ``[N, out]``: every degree's layers run over all nodes, and each node keeps
        the result for its degree."""
        if self._staticgraph.batch is None or not isinstance(edge_index, Tensor):
            return super().forward(x, edge_index, size)
        x = (x, x) if isinstance(x, Tensor) else x
        if self._staticgraph.free_sizes(x[0]):
            return super().forward(x, edge_index, size)
        target = edge_index[1 if self.flow == "source_to_target" else 0]
        rows = x[1] if x[1] is not None else x[0]
        nodes = rows.size(self.node_dim)
        degrees = degree(target, nodes, dtype=torch.long).clamp(max=self.max_degree)
        h = self.propagate(edge_index, x=x, size=size)
        out = h.new_zeros(*h.shape[:-1], self.out_channels)
        for number, (left, right) in enumerate(zip(self.lins_l, self.lins_r, strict=True)):
            result = left(h) if x[1] is None else left(h) + right(x[1])
            out = torch.where((degrees == number)[:, None], result, out)
        return out


class StaticChebConv(ChebConv):
    """``ChebConv``: one is subtracted from the weight of every self-loop without a mask."""

    _staticgraph: BatchContext

    def __norm__(
        self,
        edge_index: Tensor,
        num_nodes: int | None,
        edge_weight: Tensor | None,
        normalization: str | None,
        lambda_max: Any = None,
        dtype: Any = None,
        batch: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        context = self._staticgraph
        if context.batch is None:
            return super().__norm__(
                edge_index, num_nodes, edge_weight, normalization, lambda_max, dtype, batch
            )
        edge_index, weight = cheb_conv.get_laplacian(
            edge_index, edge_weight, normalization, dtype, num_nodes
        )
        if lambda_max is None:
            lambda_max = 2.0 * torch.where(context.mask_of(weight), weight, -torch.inf).max()
        if isinstance(lambda_max, Tensor) and lambda_max.numel() > 1 and batch is not None:
            lambda_max = lambda_max[batch[edge_index[0]]]
        weight = (2.0 * weight) / lambda_max
        weight = torch.where(weight == torch.inf, 0, weight)
        return edge_index, weight - (edge_index[0] == edge_index[1]).to(weight.dtype)


class StaticClusterGCNConv(ClusterGCNConv):
    """``ClusterGCNConv``: the diagonal is enhanced where an edge is a self-loop, by ``where``."""

    _staticgraph: BatchContext

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        """``[N, F]`` to ``[N, out]``; removed self-loops stay as edges of the last node."""
        context = self._staticgraph
        if context.batch is None or not isinstance(edge_index, Tensor):
            return super().forward(x, edge_index)
        nodes = x.size(self.node_dim)
        if self.add_self_loops:
            edge_index, _ = static_remove_self_loops(context, edge_index)
            edge_index, _ = static_add_self_loops(context, edge_index, num_nodes=nodes)
        row, col = edge_index
        inverse = 1.0 / degree(col, nodes).clamp(min=1.0)
        weight = inverse[col]
        weight = torch.where(row == col, weight + self.diag_lambda * inverse[row], weight)
        out = self.propagate(edge_index, x=x, edge_weight=weight)
        return self.lin_out(out) + self.lin_root(x)


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
