"""Your own MessagePassing layer needs no change; ``check`` says whether it is static."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, global_mean_pool
from torch_geometric.utils import softmax

import staticgraph as sg


class GatedAttention(MessagePassing):
    """Neighbours weighted by a softmax over scores of the bonds, and gated by the atom itself."""

    def __init__(self, width: int, bond_width: int) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.value, self.gate = nn.Linear(width, width), nn.Linear(2 * width, width)
        self.score = nn.Linear(2 * width + bond_width, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        out = self.propagate(edge_index, x=x, edge_attr=edge_attr)
        gate = self.gate(torch.cat([x, out], dim=1)).sigmoid()
        return gate * out + (1 - gate) * x

    def message(self, x_i, x_j, edge_attr, index, ptr, size_i) -> Tensor:
        score = self.score(torch.cat([x_i, x_j, edge_attr], dim=1)).tanh()
        return softmax(score, index, ptr, size_i) * self.value(x_j)


class Net(nn.Module):
    """Two such layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.atoms = nn.Linear(9, width)
        self.layers = nn.ModuleList(GatedAttention(width, 3) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, x, edge_index, edge_attr, batch, num_graphs):
        h = self.atoms(x.float())
        for layer in self.layers:
            h = layer(h, edge_index, edge_attr.float())
        return self.head(global_mean_pool(h, batch, num_graphs))


def main(molecules: int = 1128, epochs: int = 10, width: int = 32) -> float:
    torch.manual_seed(0)
    store = sg.datasets.open("examples/data/esol.npz")
    plan = sg.plan_buckets(store, batch_size=64)
    net = Net(width)
    print(sg.check(net, plan, store).raise_for_obstacles())
    runner = sg.StaticGraphRunner(
        net,
        plan,
        loss=lambda out, batch: (out - batch.y).square(),
        optimizer=torch.optim.Adam(net.parameters(), lr=3e-3),
    ).warmup()
    loader = runner.loader(store, indices=range(molecules), shuffle=True)
    loss = torch.tensor(0.0)
    for epoch in range(epochs):
        for batch in loader:
            loss = runner.step(batch)
        print(f"epoch {epoch}: mean squared error of the last batch {loss:.3f}")
    return float(loss)


if __name__ == "__main__":
    main()
