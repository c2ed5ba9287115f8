"""Layers with weights chosen by a relation or a type, without an index by mask.

Stock PyG selects the edges of each relation, or the rows of each type, with a mask. Here every
choice is made over all rows with ``torch.where``: an edge of another relation becomes an edge of
the last node, which is always padding, and a row of another type keeps its value. The work grows
with the number of relations, as it does in a recorded step in any case.

HANConv weights its metapaths by a mean over all nodes of a type (Wang et al. 2019, equation 7),
which would include padding: it is the only place in PyG's heterogeneous convolutions where rows of
different graphs meet. Here the mean is over the real rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import FiLMConv, HeteroLinear, RGATConv, RGCNConv
from torch_geometric.nn.conv.han_conv import group
from torch_geometric.nn.conv.rgcn_conv import masked_edge_index

from staticgraph.errors import NotStatic
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.dispatch import stock

_stock_masked_edge_index = stock(masked_edge_index)
_stock_rgcn = stock(RGCNConv.forward)


def static_masked_edge_index(context: BatchContext, edge_index: Any, edge_mask: Tensor) -> Any:
    """``[2, E]``, with edges outside of the mask moved to the last node, which is padding."""
    if not isinstance(edge_index, Tensor):
        return _stock_masked_edge_index(edge_index, edge_mask)
    return torch.where(edge_mask, edge_index, context.num_nodes_for(edge_index) - 1)


def static_rgcn(
    context: BatchContext, self: RGCNConv, x: Any, edge_index: Any, edge_type: Any = None
) -> Tensor:
    """``RGCNConv.forward``, relation by relation; PyG counts the edges of each relation on the host
    to choose between this and one kernel for all."""
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
        defaults = {"edge_type_ptr": None, "size": (len(source), len(target))}
        if target.is_floating_point():
            out = out + self.propagate(edges, x=source, **defaults) @ weight[relation]
        else:  # node numbers: the weights are an embedding
            out = out + self.propagate(edges, x=weight[relation, source], **defaults)
    if self.root is not None:
        out = out + (target @ self.root if target.is_floating_point() else self.root[target])
    return out if self.bias is None else out + self.bias


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Maps PyG's selection of edges, RGCN's forward, and HAN's weighting of metapaths to
    equivalents of fixed shape."""
    return {
        masked_edge_index: static_masked_edge_index,
        RGCNConv.forward: static_rgcn,
        group: static_group,
    }


class StaticFiLMConv(FiLMConv):
    """``FiLMConv``: edges of other relations are edges of the last node."""

    _staticgraph: BatchContext

    def forward(self, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Tensor:
        """``[N, F]`` to ``[N, out]``: every relation over all edges, with those of other relations
        moved to padding."""
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
            of_type = torch.where(edge_type == number, edge_index, last)
            out = out + self.propagate(of_type, x=lin(x[0]), beta=beta, gamma=gamma)
        return out


class StaticHeteroLinear(HeteroLinear):
    """``HeteroLinear``: every type's product over all rows, each row keeps that of its type."""

    _staticgraph: BatchContext

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        """``[N, F]`` to ``[N, out]``: every type's weight over all rows, and each row keeps the
        result for its type."""
        if self._staticgraph.batch is None:
            return super().forward(x, type_vec)
        out = x.new_zeros(len(x), self.out_channels)
        for number in range(self.num_types):
            out = torch.where((type_vec == number)[:, None], x @ self.weight[number], out)
        return out if self.bias is None else out + self.bias[type_vec]


class StaticRGATConv(RGATConv):
    """``RGATConv``; the softmax within relations, which selects edges by mask, is refused."""

    _staticgraph: BatchContext

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the stock layer.

        Raises:
            NotStatic: attention is within relations, which indexes edges with a mask.
        """
        within = self.attention_mechanism == "within-relation"
        if self._staticgraph.batch is not None and within:
            raise NotStatic(
                "RGATConv with attention_mechanism='within-relation' indexes edges with a mask, "
                "once a relation: use attention_mechanism='across-relation'"
            )
        return super().forward(*args, **kwargs)


def static_group(
    context: BatchContext, xs: list[Tensor], q: nn.Parameter, k_lin: nn.Module
) -> tuple[Tensor | None, Tensor | None]:
    """Combines the relations' rows ``[N, F]`` by semantic attention: returns the sum ``[N, F]`` and
    the weights ``[relations]``, from means over real nodes."""
    if not xs:
        return None, None
    mask = context.mask_of(xs[0])
    out = torch.stack(xs)
    keys = torch.where(mask[:, None], torch.tanh(k_lin(out)), 0)
    # Without any real node PyG's mean is NaN, but then it has no row to write it to.
    mean = keys.sum(1) / mask.sum().clamp(min=1)
    weights = F.softmax((q * mean).sum(-1), dim=0)
    return (weights.view(-1, 1, 1) * out).sum(0), weights
