"""GINE or GPS over OGB's features, and how it is trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GINEConv, GPSConv, global_mean_pool

import staticgraph as sg

TRAIN = 640  # molecules: twenty batches of 32


class Molecules(nn.Module):
    """GINE or GPS of stock layers over OGB's features; pooling is called without a size."""

    def __init__(self, store, gps: bool, hidden: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.atoms = nn.ModuleList(nn.Embedding(c, hidden) for c in store.cardinality("x"))
        self.bonds = nn.ModuleList(nn.Embedding(c, hidden) for c in store.cardinality("edge_attr"))
        self.gps = gps
        self.convs = nn.ModuleList(self._layer(hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, 1)

    def _layer(self, hidden: int) -> nn.Module:
        mlp = nn.Sequential(
            nn.Linear(hidden, 2 * hidden),
            nn.BatchNorm1d(2 * hidden),
            nn.ReLU(),
            nn.Linear(2 * hidden, hidden),
        )
        conv = GINEConv(mlp)
        return GPSConv(hidden, conv, heads=4) if self.gps else conv

    def forward(self, x, edge_index, edge_attr, batch):
        h = sum(table(x[:, i]) for i, table in enumerate(self.atoms))
        e = sum(table(edge_attr[:, i]) for i, table in enumerate(self.bonds))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if self.gps:
                h = norm(conv(h, edge_index, batch, edge_attr=e))
            else:
                h = norm(conv(h, edge_index, e)).relu()
        return self.head(global_mean_pool(h, batch))


def bce(out, batch):
    return F.binary_cross_entropy_with_logits(out, batch.y.to(out.dtype), reduction="none")


def adam(model, lr=1e-3):
    return torch.optim.Adam(model.parameters(), lr=lr)


def loader_of(hiv, plan, **options):
    return sg.StaticLoader(hiv, plan, indices=hiv.splits["train"][:TRAIN], shuffle=True, **options)
