"""Global pools and hierarchies of pooling layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.utils import to_dense_adj, to_dense_batch

from support.layer_cases.case import C, Case, mlp


def pooled(layer: Any, x: Tensor, d: Any) -> Tensor:
    """Calls a layer with edge attributes and the batch, as hierarchies are called."""
    return layer(x, d.edge_index, d.edge_attr, d.batch)


class Hierarchy(nn.Module):
    """Two rounds of convolution and pooling with readouts, as in PyG's proteins example."""

    def __init__(self, pool: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.GATConv(C, C, edge_dim=4) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(C) for _ in range(2))
        self.pools = nn.ModuleList(pool(C, **options) for _ in range(2))
        self.last = pyg.EdgeConv(mlp(2 * C))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        total: Any = 0
        for conv, norm, pool in zip(self.convs, self.norms, self.pools, strict=True):
            x = norm(conv(x, edge_index, edge_attr)).tanh()  # no equal scores
            x, edge_index, edge_attr, batch, _, _ = pool(x, edge_index, edge_attr, batch)
            readout = [pyg.global_max_pool(x, batch), pyg.global_mean_pool(x, batch)]
            total = total + torch.cat(readout, 1)
        x = self.last(x, edge_index)
        return total + torch.cat([pyg.global_add_pool(x, batch)] * 2, 1)


class DenseHierarchy(nn.Module):
    """Dense pool, convolution of the clusters, the same kind of pool again; and the losses."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.scores = nn.ModuleList([nn.Linear(C, 4), nn.Linear(C, 2)])
        self.dmon = nn.ModuleList([pyg.DMoNPooling(C, 4), pyg.DMoNPooling(C, 2)])
        self.conv = pyg.DenseGraphConv(C, C)

    def forward(self, x: Tensor, d: Any) -> Tensor:
        h, mask = to_dense_batch(x, d.batch)
        adj = to_dense_adj(d.edge_index, d.batch, d.edge_weight.to(x.dtype))
        adj = adj + adj.transpose(1, 2) + 0.1 * (mask[:, :, None] & mask[:, None])
        losses: list[Tensor] = []
        for level in (0, 1):
            level_mask = mask if level == 0 else None
            if self.kind == "dmon":
                _, h, adj, *more = self.dmon[level](h, adj, level_mask)
            else:
                pool = pyg.dense_diff_pool if self.kind == "diff" else pyg.dense_mincut_pool
                h, adj, *more = pool(h, adj, self.scores[level](h), level_mask)
            losses += more
            h = self.conv(h, adj).tanh()
        return torch.cat([h.mean(1), torch.stack(losses).expand(len(h), -1)], 1)


def pools() -> list[Case]:
    readouts = {
        "global_add_pool": pyg.global_add_pool,
        "global_mean_pool": pyg.global_mean_pool,
        "global_max_pool": pyg.global_max_pool,
    }
    cases = [
        Case(n, "pools", nn.Identity, lambda m, x, d, p=p: p(m(x), d.batch), "graph")
        for n, p in readouts.items()
    ]
    cases += [
        Case(
            f"{n} without batch",
            "pools",
            nn.Identity,
            lambda m, x, d, n=n: getattr(pyg, n)(m(x), None).expand(d.u.size(0), -1),
            "graph",
        )
        for n in readouts
    ]
    hierarchies: dict[str, tuple[Any, dict[str, Any]]] = {
        "TopKPooling": (pyg.TopKPooling, {"ratio": 0.7}),
        "TopKPooling count": (pyg.TopKPooling, {"ratio": 3}),
        "TopKPooling min_score": (pyg.TopKPooling, {"min_score": 0.1, "multiplier": 2.0}),
        "SAGPooling": (pyg.SAGPooling, {"ratio": 0.6}),
        "SAGPooling GCN": (pyg.SAGPooling, {"ratio": 0.5, "GNN": pyg.GCNConv}),
        "SAGPooling min_score": (pyg.SAGPooling, {"min_score": 0.15}),
    }
    cases += [
        Case(n, "pools", lambda p=p, o=o: Hierarchy(p, **o), pooled, "graph")
        for n, (p, o) in hierarchies.items()
    ]
    cases += [
        Case(name, "pools", lambda k=k: DenseHierarchy(k), lambda m, x, d: m(x, d), "graph")
        for name, k in (
            ("dense_diff_pool", "diff"),
            ("dense_mincut_pool", "mincut"),
            ("DMoNPooling", "dmon"),
        )
    ]
    cases.append(
        Case(
            "MemPooling",
            "pools",
            lambda: pyg.MemPooling(C, C, heads=2, num_clusters=3),
            lambda m, x, d: m(x, d.batch)[0].flatten(1),
            "graph",
        )
    )
    return cases
