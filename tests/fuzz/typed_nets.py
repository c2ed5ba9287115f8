"""Plain PyG models for the data sets of :mod:`typed_sets`, written as users write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric import nn as gnn

from .typed_sets import NODES, RELATIONS, WITH_FEATURES

WIDTH = 4
CONVS = ("sage", "sage max", "gat", "graph", "edges", "hgt", "han", "to_hetero", "none")
NORMS = ("none", "none", "batch", "layer")
POOLS = ("add", "mean", "max")


@dataclass(frozen=True)
class TypedNet:
    """The parts of a model.

    Attributes:
        conv: one of :data:`CONVS`.
        norm: one of :data:`NORMS`, separate for each node type.
        pool: one of :data:`POOLS`, for each node type; used for graph labels.
        label: the level of the output.
        seed: of the parameters.
    """

    conv: str
    norm: str
    pool: str
    label: str
    seed: int

    def build(self) -> TypedModel:
        torch.manual_seed(self.seed)
        return TypedModel(self).double()

    def plain(self, model: nn.Module, data: Any) -> Tensor:
        """The model on PyG's own batch."""
        return model(
            data.x_dict, data.edge_index_dict, data.edge_attr_dict, data.batch_dict, data.num_graphs
        )

    @property
    def alone(self) -> bool:
        """Whether a graph's output is the same in any batch. HAN weights relations by a mean over
        all nodes of a batch."""
        return self.conv != "han"

    def label_of(self, batch: Any) -> Tensor:
        return batch.y if self.label == "graph" else batch[self.label].y


def typed_nets(label: str) -> st.SearchStrategy[TypedNet]:
    return st.builds(
        TypedNet,
        st.sampled_from(CONVS),
        st.sampled_from(NORMS),
        st.sampled_from(POOLS),
        st.just(label),
        st.integers(0, 99),
    )


class Plain(nn.Module):
    """A homogeneous model for ``to_hetero``."""

    def __init__(self) -> None:
        super().__init__()
        self.first = gnn.SAGEConv((WIDTH, WIDTH), WIDTH)
        self.second = gnn.SAGEConv((WIDTH, WIDTH), WIDTH, aggr="max")

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def conv_of(name: str) -> nn.Module | None:
    """The layer of a name, over dictionaries by type; None for ``none``."""
    metadata = (list(NODES), list(RELATIONS))
    w = (WIDTH, WIDTH)
    if name == "hgt":
        return gnn.HGTConv(WIDTH, WIDTH, metadata, heads=2)
    if name == "han":
        return gnn.HANConv(WIDTH, WIDTH, metadata, heads=2)
    if name == "to_hetero":
        return gnn.to_hetero(Plain(), metadata)
    by_name = {
        "sage": lambda: gnn.SAGEConv(w, WIDTH),
        "sage max": lambda: gnn.SAGEConv(w, WIDTH, aggr="max"),
        "gat": lambda: gnn.GATConv(w, WIDTH // 2, heads=2, add_self_loops=False),
        "graph": lambda: gnn.GraphConv(w, WIDTH, aggr="mean"),
        "edges": lambda: gnn.SAGEConv(w, WIDTH),
    }
    if name not in by_name:
        return None
    layers: dict[Any, nn.Module] = {relation: by_name[name]() for relation in RELATIONS}
    if name == "edges":
        layers[WITH_FEATURES] = gnn.GATv2Conv(w, WIDTH, edge_dim=2, add_self_loops=False)
    return gnn.HeteroConv(layers, aggr="sum")


class TypedModel(nn.Module):
    """An embedding, one message-passing layer, and a head over graphs or the first type's nodes."""

    def __init__(self, net: TypedNet) -> None:
        super().__init__()
        self.net = net
        self.embed = gnn.HeteroDictLinear(NODES, WIDTH)
        self.conv = conv_of(net.conv)
        made = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}.get(net.norm, nn.Identity)
        self.norms = nn.ModuleDict({kind: made(WIDTH) for kind in NODES})
        self.head = nn.Linear(2 * WIDTH if net.label == "graph" else WIDTH, 1)

    def forward(
        self, x: dict, edge_index: dict, edge_attr: dict, batch: dict, batch_size: int
    ) -> Tensor:
        h = self.embed(x)
        if self.net.conv == "edges":
            h = h | self.conv(h, edge_index, edge_attr)
        elif self.conv is not None:
            h = h | self.conv(h, edge_index)
        h = {kind: self.norms[kind](value).tanh() for kind, value in h.items()}
        if self.net.label != "graph":
            return self.head(h[self.net.label])
        pools = {"mean": gnn.global_mean_pool, "max": gnn.global_max_pool}
        pool = pools.get(self.net.pool, gnn.global_add_pool)
        return self.head(torch.cat([pool(h[k], batch[k], batch_size) for k in NODES], dim=1))
