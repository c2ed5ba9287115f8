"""OGB's GIN with a virtual node, twelve tasks and missing labels (as in ogbg-moltox21)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, global_add_pool, global_mean_pool

import staticgraph as sg

TASKS = 12


def labelled(data: Data, random: torch.Generator) -> Data:
    """Returns a molecule with twelve binary labels made from its atoms, one in three missing."""
    questions = data.x.float().mean(0).repeat(2)[:TASKS]
    y = (questions > torch.arange(TASKS) / 4).float()
    y[torch.rand(TASKS, generator=random) < 1 / 3] = torch.nan  # no label
    return Data(x=data.x, edge_index=data.edge_index, y=y[None])


class VirtualNode(nn.Module):
    """GIN with a virtual node per molecule, which all of its atoms read and write."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.atoms = nn.Linear(9, width)
        self.virtual = nn.Embedding(1, width)
        self.convs = nn.ModuleList(GINConv(self.mlp(width)) for _ in range(layers))
        self.mixes = nn.ModuleList(self.mlp(width) for _ in range(layers - 1))
        self.head = nn.Linear(width, TASKS)

    @staticmethod
    def mlp(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        h = self.atoms(x.float())
        virtual = self.virtual.weight.expand(num_graphs, -1)
        for number, conv in enumerate(self.convs):
            h = h + virtual[batch]
            h = conv(h, edge_index)
            if number < len(self.mixes):
                virtual = self.mixes[number](global_add_pool(h, batch, num_graphs) + virtual)
        return self.head(global_mean_pool(h, batch, num_graphs))


def loss(out: Tensor, batch: sg.StaticBatch) -> Tensor:
    """Returns one value per molecule and task; missing labels are left out of the mean."""
    return F.binary_cross_entropy_with_logits(out, batch.y, reduction="none")


def main(molecules: int = 2000, epochs: int = 10, width: int = 32) -> float:
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    hiv = sg.datasets.open("examples/data/hiv.npz")
    graphs = [labelled(hiv[i], random) for i in range(molecules)]
    store = sg.GraphStore.from_pyg(graphs, progress=False)
    net = VirtualNode(width, layers=3)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    plan = sg.plan_buckets(store, batch_size=32)
    runner = sg.StaticGraphRunner(net, plan, loss=loss, optimizer=optimizer).warmup()
    means = []
    for _ in range(epochs):
        means.append(torch.stack([runner.step(batch) for batch in runner.loader(store)]).mean())
    print("mean loss of each epoch:", *(f"{mean:.3f}" for mean in means))
    return float(means[-1])


if __name__ == "__main__":
    main()
