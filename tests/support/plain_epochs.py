"""A few small graphs in float64, a model and an optimizer, to compare loops with plain PyG."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GINConv, global_add_pool

import staticgraph as sg
from support.alike import squared, update
from support.graphs import drawn_graphs

D = torch.float64


GRAPHS = drawn_graphs((2 + number % 5 for number in range(24)), x=("node", 4), y=("graph", 2))
STORE = sg.GraphStore.from_pyg(GRAPHS)
PLAN = sg.plan_buckets(STORE, batch_size=8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GINConv(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()))
        self.head = nn.Linear(8, 2)

    def forward(self, x, edge_index, batch, num_graphs):
        return self.head(global_add_pool(self.conv(x, edge_index), batch, num_graphs))


def make_net() -> Net:
    torch.manual_seed(0)
    return Net().to(D)


def sgd(*parts: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for part in parts for p in part.parameters()], 1e-3, momentum=0.9)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, ids, loss=squared) -> Tensor:
    """A step of plain PyG over some of the graphs; returns its loss."""
    batch = Batch.from_data_list([GRAPHS[i] for i in ids])
    mean = loss(model(batch.x, batch.edge_index, batch.batch, len(ids)), batch).mean()
    update(optimizer, mean)
    return mean


def equal(ours, theirs) -> None:
    torch.testing.assert_close(list(ours), list(theirs), rtol=1e-9, atol=1e-11)
