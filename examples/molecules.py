"""Solubility of molecules with GINE or GPS: python examples/molecules.py --model gps"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

import staticgraph as sg


class Net(nn.Module):
    """GINE layers; with ``heads``, each adds attention among the atoms of a molecule."""

    def __init__(self, width: int, layers: int, heads: int = 0) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Linear(9, width), nn.Linear(3, width)
        self.layers = nn.ModuleList(self.layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    @staticmethod
    def layer(width: int, heads: int) -> nn.Module:
        mlp = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
        conv = GINEConv(mlp)
        return GPSConv(width, conv, heads=heads) if heads else conv

    def forward(self, x, edge_index, edge_attr, batch, num_graphs):
        h, bonds = self.atoms(x.float()), self.bonds(edge_attr.float())
        for layer in self.layers:
            if isinstance(layer, GPSConv):
                h = layer(h, edge_index, batch, edge_attr=bonds)
            else:
                h = layer(h, edge_index, bonds)
        return self.head(global_add_pool(h, batch, num_graphs) / 10)


def main(model: str = "gine", molecules: int = 1128, epochs: int = 20, width: int = 64) -> float:
    torch.manual_seed(0)
    store = sg.datasets.open("examples/data/esol.npz")
    plan = sg.plan_buckets(store, batch_size=64)
    net = Net(width, layers=3, heads=4 if model == "gps" else 0)
    runner = sg.StaticGraphRunner(
        net,
        plan,
        loss=lambda out, batch: F.mse_loss(out, batch.y, reduction="none"),
        optimizer=torch.optim.Adam(net.parameters(), lr=1e-3),
    ).warmup()
    loader = runner.loader(store, indices=range(molecules), shuffle=True)
    loss = torch.tensor(0.0)
    for epoch in range(epochs):
        for batch in loader:
            loss = runner.step(batch)
        print(f"epoch {epoch}: mean squared error of the last batch {loss:.3f}")
    return float(loss)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("gine", "gps"), default="gine")
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    main(given.model, epochs=given.epochs)
