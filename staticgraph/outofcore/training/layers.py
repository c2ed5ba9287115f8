"""GraphSAGE, GCN and GAT over sampled neighbourhoods of fixed shape.

A layer takes the rows of hops 0 to ``depth`` and returns those of hops 0 to ``depth - 1``, each
computed from the row itself and its sampled neighbours. With draws of fixed width, aggregation is a
gather, a view and a sum; the forward pass has no scatter. Parameters have PyG's names, so that
state dicts are interchangeable, and :meth:`whole` runs the same parameters over an edge list with
PyG's layer, for evaluation on full neighbourhoods. Self-loops are treated as in PyG: GraphSAGE
treats them like other edges, GCN and GAT remove them and add one self-loop per node.

Sources: Hamilton et al., NeurIPS 2017; Kipf and Welling, ICLR 2017; Velickovic et al., ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv


class Hops(Protocol):
    """The part of a padded sample that layers read.

    See :class:`staticgraph.outofcore.sampling.hops.HopBatch`.
    """

    degree: Tensor
    whole: Tensor
    draws: tuple[Tensor, ...]


def gathered(x: Tensor, draws: Sequence[Tensor]) -> list[Tensor]:
    """Returns the neighbours' rows of each hop, ``[N_h, f_h, ...]``, zeros for no neighbour.

    Args:
        x: ``[rows, ...]`` of one hop more than there are draws.
        draws: the draws of the hops that are computed.
    """
    padded = torch.cat([x.new_zeros(1, *x.shape[1:]), x])
    return [
        padded.index_select(0, drawn.flatten()).view(*drawn.shape, *x.shape[1:]) for drawn in draws
    ]


def counts(draws: Sequence[Tensor]) -> Tensor:
    """Returns ``[rows of these hops]``: the number of sampled neighbours of each row."""
    return torch.cat([(drawn > 0).sum(1) for drawn in draws])


def others(draws: Sequence[Tensor]) -> list[Tensor]:
    """Returns the draws without self-loops."""
    found, start = [], 1
    for drawn in draws:
        own = torch.arange(start, start + drawn.size(0), device=drawn.device).unsqueeze(1)
        found.append(drawn.masked_fill(drawn == own, 0))
        start += drawn.size(0)
    return found


class SampledSAGE(nn.Module):
    """GraphSAGE: the mean of the neighbours and the node itself, each through a linear map."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin_l: nn.Linear = nn.Linear(in_channels, out_channels)
        self.lin_r: nn.Linear = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor, hops: Hops, depth: int) -> Tensor:
        """Maps ``[rows of hops 0 to depth, F]`` to ``[rows of hops 0 to depth - 1, F']``."""
        draws = hops.draws[:depth]
        total = torch.cat([rows.sum(1) for rows in gathered(x, draws)])
        mean = total / counts(draws).clamp(min=1).unsqueeze(-1)
        return self.lin_l(mean) + self.lin_r(x[: total.size(0)])

    def whole(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Applies the layer to all edges, ``[N, F]`` to ``[N, F']``."""
        conv = SAGEConv(self.lin_l.in_features, self.lin_l.out_features)
        return _call(conv, self, x, edge_index)


class SampledGCN(nn.Module):
    """The symmetrically normalised sum of the neighbours and the node itself.

    GCN is the mean over a node's closed neighbourhood of ``sqrt((1 + d_i) / (1 + d_j)) x_j``, with
    the degrees d of the whole graph. Here it is the mean over the resident part of the
    neighbourhood, estimated from the neighbours drawn from it, with the same d. Since the resident
    part is random, this is the best available estimate, and it equals GCN if everything is resident
    and drawn. With degrees counted in the resident part instead, the weights in training would
    differ from those in evaluation on full neighbourhoods.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin: nn.Linear = nn.Linear(in_channels, out_channels, bias=False)
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(out_channels))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Tensor, hops: Hops, depth: int) -> Tensor:
        """Maps ``[rows of hops 0 to depth, F]`` to ``[rows of hops 0 to depth - 1, F']``."""
        x = self.lin(x)
        root = (hops.whole[: x.size(0)].to(x.dtype) + 1.0).sqrt().unsqueeze(-1)
        x = x / root
        draws = others(hops.draws[:depth])
        total = torch.cat([rows.sum(1) for rows in gathered(x, draws)])
        n = total.size(0)
        degree = hops.degree[:n].to(x.dtype)
        not_drawn = (degree / counts(draws).clamp(min=1)).unsqueeze(-1)
        mean = (not_drawn * total + x[:n]) / (degree + 1.0).unsqueeze(-1)
        return root[:n] * mean + self.bias

    def whole(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Applies the layer to all edges, ``[N, F]`` to ``[N, F']``."""
        return _call(GCNConv(self.lin.in_features, self.lin.out_features), self, x, edge_index)


class SampledGAT(nn.Module):
    """Attention over the neighbours and the node itself; heads are concatenated.

    Args:
        in_channels: F.
        out_channels: channels per head, F'; the output has ``heads * out_channels``.
        heads: the number of heads.
    """

    heads: int
    out_channels: int

    SLOPE = 0.2

    def __init__(self, in_channels: int, out_channels: int, heads: int = 1) -> None:
        super().__init__()
        self.heads, self.out_channels = heads, out_channels
        self.lin: nn.Linear = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att_src: nn.Parameter = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst: nn.Parameter = nn.Parameter(torch.empty(1, heads, out_channels))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(heads * out_channels))
        for parameter in (self.lin.weight, self.att_src, self.att_dst):
            nn.init.xavier_uniform_(parameter)

    def forward(self, x: Tensor, hops: Hops, depth: int) -> Tensor:
        """Maps rows of hops 0 to depth ``[.., F]`` to hops 0 to depth - 1 ``[.., heads * F']``."""
        x = self.lin(x).view(-1, self.heads, self.out_channels)
        source, target = (x * self.att_src).sum(-1), (x * self.att_dst).sum(-1)
        out, start = [], 0
        draws = others(hops.draws[:depth])
        neighbours = zip(draws, gathered(x, draws), gathered(source, draws), strict=True)
        for drawn, rows, sources in neighbours:
            own = slice(start, start + drawn.size(0))
            start = own.stop
            logits = torch.cat([source[own].unsqueeze(1), sources], 1) + target[own].unsqueeze(1)
            logits = nn.functional.leaky_relu(logits, self.SLOPE)
            # The node itself is always included, so no row is fully masked.
            absent = nn.functional.pad(drawn == 0, (1, 0)).unsqueeze(-1)
            weights = logits.masked_fill(absent, -torch.inf).softmax(1).unsqueeze(-1)
            out.append(weights[:, 0] * x[own] + (weights[:, 1:] * rows).sum(1))
        return torch.cat(out).flatten(1) + self.bias

    def whole(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Applies the layer to all edges, ``[N, F]`` to ``[N, heads * F']``."""
        conv = GATConv(self.lin.in_features, self.out_channels, heads=self.heads)
        return _call(conv, self, x, edge_index)


LAYERS: dict[str, type[SampledSAGE | SampledGCN | SampledGAT]] = {
    "sage": SampledSAGE,
    "gcn": SampledGCN,
    "gat": SampledGAT,
}


class SampledGNN(nn.Module):
    """Layers with relu and dropout between them, one per hop.

    Args:
        kind: ``sage``, ``gcn`` or ``gat``.
        in_channels: F.
        hidden: channels between layers.
        out_channels: channels of the output.
        layers: k; the samples must have as many hops.
        dropout: the dropout probability before every layer, in training.
        heads: heads of ``gat``, except in its last layer, which has one.

    Raises:
        ValueError: for another ``kind``, or if ``hidden`` of ``gat`` is not a multiple of
            ``heads``.
    """

    in_channels: int
    out_channels: int

    def __init__(
        self,
        kind: str,
        in_channels: int,
        hidden: int,
        out_channels: int,
        layers: int,
        dropout: float = 0.0,
        heads: int = 4,
    ) -> None:
        super().__init__()
        if kind not in LAYERS:
            raise ValueError(f"kind={kind!r}; choose one of {', '.join(LAYERS)}")
        widths = [in_channels, *[hidden] * (layers - 1), out_channels]
        made: list[Any] = []
        for number, (before, after) in enumerate(pairwise(widths)):
            if kind == "gat" and number + 1 < layers:
                if hidden % heads:
                    raise ValueError(f"hidden={hidden} is not a multiple of heads={heads}")
                made.append(SampledGAT(before, after // heads, heads))
            else:
                made.append(LAYERS[kind](before, after))
        self.in_channels, self.out_channels = in_channels, out_channels
        self.layers: nn.ModuleList = nn.ModuleList(made)
        self.dropout = dropout

    def extra_repr(self) -> str:
        """Returns the options that the representation of the layers leaves out."""
        heads = [layer.heads for layer in self.layers if isinstance(layer, SampledGAT)]
        return f"dropout={self.dropout}, heads={heads}"

    def forward(self, x: Tensor, hops: Hops) -> Tensor:
        """Maps ``[R, F]`` of all hops to ``[N_0, out]`` of the seeds."""
        for number, layer in enumerate(self.layers):
            x = self._before(x, number)
            x = layer(x, hops, len(self.layers) - number)
        return x

    def whole(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Maps ``[N, F]`` to ``[N, out]`` on full neighbourhoods."""
        for number, layer in enumerate(self.layers):
            x = self._before(x, number)
            x = cast(SampledSAGE, layer).whole(x, edge_index)
        return x

    def _before(self, x: Tensor, number: int) -> Tensor:
        x = x.relu() if number else x
        return nn.functional.dropout(x, self.dropout, self.training) if self.dropout else x


def _call(conv: nn.Module, layer: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    """Calls PyG's layer with the parameters of this package's layer."""
    parameters: dict[str, Tensor] = dict(layer.named_parameters())
    return torch.func.functional_call(conv, parameters, (x, edge_index))
