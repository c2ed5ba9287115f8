"""GINE or GPS of stock layers over the molecules of HIV, as a user would write it."""

from __future__ import annotations

from torch import nn
from torch_geometric.nn import GINEConv, GPSConv, global_mean_pool


class Molecules(nn.Module):
    """Stock layers; pooling is called without a size."""

    def __init__(self, store, gps: bool, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.atoms = nn.ModuleList(nn.Embedding(c, hidden) for c in store.cardinality("x"))
        self.bonds = nn.ModuleList(nn.Embedding(c, hidden) for c in store.cardinality("edge_attr"))
        self.gps = gps
        mlps = [
            nn.Sequential(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
            for _ in range(layers)
        ]
        convs = [GINEConv(mlp) for mlp in mlps]
        self.convs = nn.ModuleList(GPSConv(hidden, c, heads=4) if gps else c for c in convs)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h = sum(table(x[:, i]) for i, table in enumerate(self.atoms))
        e = sum(table(edge_attr[:, i]) for i, table in enumerate(self.bonds))
        for conv in self.convs:
            h = conv(h, edge_index, batch, edge_attr=e) if self.gps else conv(h, edge_index, e)
        return self.head(global_mean_pool(h, batch))
