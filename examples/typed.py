"""Atoms and bonds as nodes of two types, with a model made by PyG's ``to_hetero``."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv, global_mean_pool, to_hetero

import staticgraph as sg


def with_bonds(data: Data) -> HeteroData:
    """Converts a molecule: each bond becomes a node between its two atoms."""
    once = data.edge_index[0] < data.edge_index[1]
    ends, bonds = data.edge_index[:, once], torch.arange(int(once.sum()))
    made = HeteroData(y=data.y)
    made["atom"].x = data.x.float()
    made["bond"].x = data.edge_attr[once].float()
    made["atom", "ends", "bond"].edge_index = torch.stack([ends.flatten(), bonds.repeat(2)])
    made["bond", "joins", "atom"].edge_index = torch.stack([bonds.repeat(2), ends.flatten()])
    return made


class Encoder(nn.Module):
    """Two layers; ``to_hetero`` makes one copy of them per edge type."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = SAGEConv((-1, -1), width)
        self.norm = nn.BatchNorm1d(width)
        self.second = SAGEConv((-1, -1), width)

    def forward(self, x, edge_index):
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


class Solubility(nn.Module):
    """Predicts one number per molecule from the mean over its atoms."""

    def __init__(self, width: int, metadata: tuple) -> None:
        super().__init__()
        self.encoder = to_hetero(Encoder(width), metadata)
        self.head = nn.Linear(width, 1)

    def forward(self, data):
        h = self.encoder(data.x_dict, data.edge_index_dict)
        return self.head(global_mean_pool(h["atom"], data["atom"].batch, data.num_graphs))


def main(molecules: int = 1000, epochs: int = 10, width: int = 32) -> float:
    torch.manual_seed(0)
    esol = sg.datasets.open("examples/data/esol.npz")
    graphs = [with_bonds(esol[i]) for i in range(molecules)]
    store = sg.GraphStore.from_pyg(graphs, progress=False)
    plan = sg.plan_buckets(store, batch_size=32)
    net = Solubility(width, graphs[0].metadata())
    batch = next(iter(sg.StaticLoader(store, plan)))
    with torch.no_grad(), sg.bound(net, batch) as data:  # lazy layers learn their shapes
        net(data)
    runner = sg.StaticGraphRunner(
        net,
        plan,
        loss=lambda out, batch: (out - batch.y).square(),
        optimizer=torch.optim.Adam(net.parameters(), lr=3e-3),
    ).warmup()
    loss = torch.tensor(0.0)
    for epoch in range(epochs):
        for batch in runner.loader(store, shuffle=True):
            loss = runner.step(batch)
        print(f"epoch {epoch}: mean squared error of the last batch {loss:.3f}")
    return float(loss)


if __name__ == "__main__":
    main()
