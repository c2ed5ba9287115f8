"""Plain PyG models for any data set of :mod:`graph_sets`, specified by a few names.

They are written as users write them: nothing here handles padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.utils import scatter

WIDTH = 4
CONVS = (
    "gine", "gin", "gcn", "gcn weighted", "gat", "gatv2", "gat edges", "sage", "sage max", "graph",
    "transformer", "edge", "gated", "pna", "gen", "cheb", "gps", "none",
)  # fmt: skip
NORMS = ("none", "none", "batch", "torch batch", "layer", "layer node", "instance", "graph", "pair")
POOLS = ("add", "mean", "max", "softmax", "attention", "scatter", "set2set")
JUMPS = ("none", "residual", "concatenated")


@dataclass(frozen=True)
class Net:
    """The parts of a model.

    Attributes:
        conv: one of :data:`CONVS`; the same in both layers.
        norm: one of :data:`NORMS`, after each layer.
        pool: one of :data:`POOLS`, from nodes to graphs; used for graph labels.
        jump: one of :data:`JUMPS`, how layers are connected.
        label: the level of the output.
        seed: of the parameters.
    """

    conv: str
    norm: str
    pool: str
    jump: str
    label: str
    seed: int

    alone = True  # a graph's output is the same in any batch

    def build(self) -> Model:
        torch.manual_seed(self.seed)
        return Model(self).double()

    def plain(self, model: nn.Module, data: Any) -> Tensor:
        """The model on PyG's own batch."""
        return model(
            data.x, data.edge_index, data.edge_attr, data.edge_weight, data.batch, data.num_graphs
        )

    def label_of(self, batch: Any) -> Tensor:
        return batch.y


def nets(label: str) -> st.SearchStrategy[Net]:
    return st.builds(
        Net,
        st.sampled_from(CONVS),
        st.sampled_from(NORMS),
        st.sampled_from(POOLS),
        st.sampled_from(JUMPS),
        st.just(label),
        st.integers(0, 99),
    )


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def conv_of(name: str) -> nn.Module | None:
    """The message-passing layer of a name; None for ``none``."""
    w = WIDTH
    made = {
        "gine": lambda: gnn.GINEConv(mlp(), train_eps=True),
        "gin": lambda: gnn.GINConv(mlp()),
        "gcn": lambda: gnn.GCNConv(w, w),
        "gcn weighted": lambda: gnn.GCNConv(w, w, improved=True),
        "gat": lambda: gnn.GATConv(w, w // 2, heads=2),
        "gatv2": lambda: gnn.GATv2Conv(w, w // 2, heads=2),
        "gat edges": lambda: gnn.GATConv(w, w, heads=1, edge_dim=w),
        "sage": lambda: gnn.SAGEConv(w, w),
        "sage max": lambda: gnn.SAGEConv(w, w, aggr="max", project=True),
        "graph": lambda: gnn.GraphConv(w, w, aggr="mean"),
        "transformer": lambda: gnn.TransformerConv(w, w // 2, heads=2, edge_dim=w),
        "edge": lambda: gnn.EdgeConv(nn.Sequential(nn.Linear(2 * w, w), nn.Tanh()), aggr="max"),
        # PyG's default for act is one module, which all layers share with its training flag.
        "gated": lambda: gnn.ResGatedGraphConv(w, w, edge_dim=w, act=nn.Sigmoid()),
        "pna": lambda: gnn.PNAConv(
            w, w, ["mean", "max", "std"], ["identity", "amplification"],
            torch.tensor([1, 2, 3, 1]), edge_dim=w,
        ),
        "gen": lambda: gnn.GENConv(w, w, aggr="softmax", learn_t=True, edge_dim=w),
        "cheb": lambda: gnn.ChebConv(w, w, K=2),
        "gps": lambda: gnn.GPSConv(w, gnn.GINEConv(mlp()), heads=2, norm="batch_norm"),
    }  # fmt: skip
    return made[name]() if name in made else None


USES_EDGES = ("gine", "gat edges", "transformer", "gated", "pna", "gen")


def norm_of(name: str) -> nn.Module | None:
    made = {
        "batch": lambda: gnn.BatchNorm(WIDTH),
        "torch batch": lambda: nn.BatchNorm1d(WIDTH),
        "layer": lambda: gnn.LayerNorm(WIDTH),
        "layer node": lambda: gnn.LayerNorm(WIDTH, mode="node"),
        "instance": lambda: gnn.InstanceNorm(WIDTH, affine=True),
        "graph": lambda: gnn.GraphNorm(WIDTH),
        "pair": lambda: gnn.PairNorm(),
    }
    return made[name]() if name in made else None


class Model(nn.Module):
    """Two layers, and a head over graphs, nodes or edges."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        self.nodes, self.edges = nn.Linear(3, WIDTH), nn.Linear(2, WIDTH)
        self.convs = nn.ModuleList(filter(None, (conv_of(net.conv), conv_of(net.conv))))
        self.norms = nn.ModuleList(filter(None, (norm_of(net.norm), norm_of(net.norm))))
        width = WIDTH * (3 if net.jump == "concatenated" else 1)
        if net.pool == "attention":
            self.pool = gnn.AttentionalAggregation(nn.Linear(width, 1))
        elif net.pool == "softmax":
            self.pool = gnn.SoftmaxAggregation(learn=True)
        elif net.pool == "set2set":
            self.pool = gnn.Set2Set(width, processing_steps=2)
        pooled = 2 * width if net.pool == "set2set" and net.label == "graph" else width
        pooled = 2 * width if net.label == "edge" else pooled
        self.head = nn.Linear(pooled, 1)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, edge_weight: Tensor,
        batch: Tensor, batch_size: int,
    ) -> Tensor:  # fmt: skip
        x, edges = self.nodes(x), self.edges(edge_attr)
        seen = [x]
        for number in range(2):
            if number < len(self.convs):
                h = self._conv(self.convs[number], x, edge_index, edges, edge_weight, batch)
            else:
                h = torch.tanh(x)
            if number < len(self.norms):
                h = self._norm(self.norms[number], h, batch, batch_size)
            x = x + h.relu() if self.net.jump == "residual" else h.tanh()
            seen.append(x)
        if self.net.jump == "concatenated":
            x = torch.cat(seen, dim=1)
        if self.net.label == "edge":
            return self.head(torch.cat([x[edge_index[0]], x[edge_index[1]]], dim=1))
        if self.net.label == "node":
            return self.head(x)
        return self.head(self._pooled(x, batch, batch_size))

    def _conv(self, conv: Any, x: Tensor, index: Tensor, edges: Tensor, weight: Tensor, batch):
        name = self.net.conv
        if name == "gps":
            return conv(x, index, batch, edge_attr=edges)
        if name in USES_EDGES:
            return conv(x, index, edges)
        if name == "gcn weighted":
            return conv(x, index, weight)
        if name == "cheb":
            return conv(x, index, batch=batch)
        return conv(x, index)

    def _norm(self, norm: Any, h: Tensor, batch: Tensor, size: int) -> Tensor:
        if self.net.norm in ("batch", "torch batch", "layer node"):
            return norm(h)
        if self.net.norm == "pair":
            return norm(h, batch)
        return norm(h, batch, size)

    def _pooled(self, x: Tensor, batch: Tensor, size: int) -> Tensor:
        pool = self.net.pool
        if pool in ("attention", "softmax", "set2set"):
            return self.pool(x, batch, dim_size=size)
        if pool == "scatter":
            return scatter(x, batch, 0, size, reduce="sum")
        by_name = {"mean": gnn.global_mean_pool, "max": gnn.global_max_pool}
        return by_name.get(pool, gnn.global_add_pool)(x, batch, size)
