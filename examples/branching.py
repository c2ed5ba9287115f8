"""Learns which variable of an integer program to branch on (Gasse et al., 2019).

Each program is a bipartite graph of constraints and variables, with one choice among its candidate
variables.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv, global_add_pool
from torch_geometric.utils import softmax

import staticgraph as sg


def program(random: torch.Generator) -> HeteroData:
    """Makes a random program; the right choice is the candidate in the most constraints."""
    constraints, variables = (int(torch.randint(4, 12, (), generator=random)) for _ in range(2))
    edges = (torch.rand(constraints, variables, generator=random) < 0.4).nonzero().t()
    data = HeteroData()
    data["constraint"].x = torch.rand(constraints, 2, generator=random)
    data["variable"].x = torch.rand(variables, 3, generator=random)
    data["variable"].candidate = torch.rand(variables, generator=random) < 0.7
    data["variable"].candidate[0] = True
    used = torch.bincount(edges[1], minlength=variables)
    best = torch.where(data["variable"].candidate, used, -1).argmax()
    data["variable"].chosen = (torch.arange(variables) == best).float()
    data["constraint", "holds", "variable"].edge_index = edges
    data["variable", "stands_in", "constraint"].edge_index = edges.flip(0)
    return data


class Policy(nn.Module):
    """Messages from variables to constraints and back; gives each variable's log-probability."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.variables, self.constraints = nn.Linear(3, width), nn.Linear(2, width)
        self.to_constraints = SAGEConv((width, width), width, aggr="add")
        self.to_variables = SAGEConv((width, width), width, aggr="add")
        self.score = nn.Linear(width, 1)

    def forward(self, data) -> Tensor:
        edges = data.edge_index_dict
        v, c = self.variables(data["variable"].x), self.constraints(data["constraint"].x)
        c = self.to_constraints((v, c), edges["variable", "stands_in", "constraint"]).relu()
        v = self.to_variables((c, v), edges["constraint", "holds", "variable"]).relu()
        score = torch.where(data["variable"].candidate, self.score(v).squeeze(1), -1e9)
        batch = data["variable"].batch
        return (softmax(score, batch, num_nodes=data.num_graphs) + 1e-12).log()


def loss(out: Tensor, batch: sg.StaticBatch) -> Tensor:
    """Returns one value per program: the negative log-probability of the right variable."""
    variable = batch["variable"]
    return -global_add_pool((out * variable.chosen)[:, None], variable.batch, batch.num_graphs)


def main(programs: int = 1000, epochs: int = 10, width: int = 32) -> float:
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    store = sg.GraphStore.from_pyg([program(random) for _ in range(programs)], progress=False)
    net = Policy(width)
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
