"""Layers with weights chosen by a relation, a type or a degree, without an index by mask.

Stock PyG picks the edges of a relation, or the nodes of a degree, with a mask, once for each. Here
every choice is made over all rows with ``torch.where``: an edge of another relation becomes an edge
of the last node, which is always padding, and a row of another type keeps what it had. The work
grows with the number of relations, as it does in a recorded step in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import (
    ChebConv,
    ClusterGCNConv,
    FiLMConv,
    HeteroLinear,
    HypergraphConv,
    MFConv,
    RGATConv,
    RGCNConv,
)
from torch_geometric.nn.conv import cheb_conv  # the binding that is exchanged in a step
from torch_geometric.nn.conv.rgcn_conv import masked_edge_index
from torch_geometric.utils import degree

from staticgraph.errors import NotStatic
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.dispatch import stock
from staticgraph.nn.utils.self_loops import static_add_self_loops, static_remove_self_loops

_stock_masked_edge_index = stock(masked_edge_index)
_stock_rgcn = stock(RGCNConv.forward)


def static_masked_edge_index(context: BatchContext, edge_index: Any, edge_mask: Tensor) -> Any:
    if not isinstance(edge_index, Tensor):
        return _stock_masked_edge_index(edge_index, edge_mask)
    return torch.where(edge_mask, edge_index, context.num_nodes_for(edge_index) - 1)


def static_rgcn(
    context: BatchContext, self: RGCNConv, x: Any, edge_index: Any, edge_type: Any = None
) -> Tensor:
    """``RGCNConv.forward``, relation by relation; PyG's counts the edges of each on the host to
    choose between that and one kernel over all."""
    if self.num_blocks is not None or not isinstance(edge_index, Tensor):
        return _stock_rgcn(self, x, edge_index, edge_type)
    source = x[0] if isinstance(x, tuple) else x
    if source is None:
        source = torch.arange(self.in_channels_l, device=self.weight.device)
    target = x[1] if isinstance(x, tuple) else source
    weight = self.weight
    if self.num_bases is not None:
        weight = (self.comp @ weight.flatten(1)).view(self.num_relations, -1, self.out_channels)
    out = torch.zeros(len(target), self.out_channels, device=target.device)
    for relation in range(self.num_relations):
        edges = static_masked_edge_index(context, edge_index, edge_type == relation)
        given = {"edge_type_ptr": None, "size": (len(source), len(target))}
        if target.is_floating_point():
            out = out + self.propagate(edges, x=source, **given) @ weight[relation]
        else:  # numbers of nodes: the weights are an embedding
            out = out + self.propagate(edges, x=weight[relation, source], **given)
    if self.root is not None:
        out = out + (target @ self.root if target.is_floating_point() else self.root[target])
    return out if self.bias is None else out + self.bias


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """PyG's choice of edges, and of a kernel, and their equals of fixed shape."""
    return {masked_edge_index: static_masked_edge_index, RGCNConv.forward: static_rgcn}


class StaticMFConv(MFConv):
    """``MFConv``: every degree's layer over all nodes, each node keeps that of its degree."""

    _staticgraph: BatchContext

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        if self._staticgraph.batch is None or not isinstance(edge_index, Tensor):
            return super().forward(x, edge_index, size)
        x = (x, x) if isinstance(x, Tensor) else x
        target = edge_index[1 if self.flow == "source_to_target" else 0]
        rows = x[1] if x[1] is not None else x[0]
        nodes = rows.size(self.node_dim)
        degrees = degree(target, nodes, dtype=torch.long).clamp(max=self.max_degree)
        h = self.propagate(edge_index, x=x, size=size)
        out = h.new_zeros(*h.shape[:-1], self.out_channels)
        for number, (left, right) in enumerate(zip(self.lins_l, self.lins_r, strict=True)):
            own = left(h) if x[1] is None else left(h) + right(x[1])
            out = torch.where((degrees == number)[:, None], own, out)
        return out


class StaticFiLMConv(FiLMConv):
    """``FiLMConv``: edges of other relations are edges of the last node."""

    _staticgraph: BatchContext

    def forward(self, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Tensor:
        context = self._staticgraph
        if context.batch is None or self.num_relations <= 1 or not isinstance(edge_index, Tensor):
            return super().forward(x, edge_index, edge_type)
        assert edge_type is not None
        x = (x, x) if isinstance(x, Tensor) else x
        beta, gamma = self.film_skip(x[1]).split(self.out_channels, dim=-1)
        out = gamma * self.lin_skip(x[1]) + beta
        out = out if self.act is None else self.act(out)
        last = context.num_nodes_for(edge_index) - 1
        for number, (lin, film) in enumerate(zip(self.lins, self.films, strict=True)):
            beta, gamma = film(x[1]).split(self.out_channels, dim=-1)
            own = torch.where(edge_type == number, edge_index, last)
            out = out + self.propagate(own, x=lin(x[0]), beta=beta, gamma=gamma)
        return out


class StaticHeteroLinear(HeteroLinear):
    """``HeteroLinear``: every type's product over all rows, each row keeps that of its type."""

    _staticgraph: BatchContext

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        if self._staticgraph.batch is None:
            return super().forward(x, type_vec)
        out = x.new_zeros(len(x), self.out_channels)
        for number in range(self.num_types):
            out = torch.where((type_vec == number)[:, None], x @ self.weight[number], out)
        return out if self.bias is None else out + self.bias[type_vec]


class StaticChebConv(ChebConv):
    """``ChebConv``: one is taken off the weight of every self-loop by a ``where``."""

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
    """``ClusterGCNConv``: the diagonal is enhanced where an edge is a loop, by a ``where``."""

    _staticgraph: BatchContext

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
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
        if self._staticgraph.batch is not None and num_edges is None:
            carried = hyperedge_weight if hyperedge_weight is not None else hyperedge_attr
            num_edges = x.size(0) if carried is None else carried.size(0)
        return super().forward(x, hyperedge_index, hyperedge_weight, hyperedge_attr, num_edges)


class StaticRGATConv(RGATConv):
    """``RGATConv``; the softmax within relations picks edges by mask and is refused."""

    _staticgraph: BatchContext

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        within = self.attention_mechanism == "within-relation"
        if self._staticgraph.batch is not None and within:
            raise NotStatic(
                "RGATConv with attention_mechanism='within-relation' indexes edges with a mask, "
                "once a relation: use attention_mechanism='across-relation'"
            )
        return super().forward(*args, **kwargs)
