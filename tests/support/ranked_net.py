"""The model, the graphs and the loss that several processes train together in tests."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv, global_add_pool

import staticgraph as sg
from support.runners import sgd_runner

GRAPHS, BATCH = 150, 8  # on 4 ranks: steps of 32 graphs, and an incomplete last one


class Net(nn.Module):
    """GINE with BatchNorm over nodes, and one over graphs."""

    def __init__(self, width: int = 6, targets: int = 2) -> None:
        super().__init__()
        self.bonds = nn.Linear(2, 4)
        self.conv = GINEConv(nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Tanh()))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, targets)
        self.unused = nn.Linear(3, 3)

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.conv(x, edge_index, self.bonds(edge_attr))
        return self.head(self.norm(global_add_pool(h, batch)))


@functools.cache
def store_of(missing: bool = False) -> sg.GraphStore:
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(GRAPHS):
        nodes, edges = int(rng.integers(1, 12)), int(rng.integers(0, 20))
        y = rng.normal(size=(1, 2))
        if missing:
            y[rng.random((1, 2)) < 0.4] = np.nan
        graphs.append(
            Data(
                x=torch.from_numpy(rng.normal(size=(nodes, 4))),
                edge_index=torch.from_numpy(rng.integers(0, nodes, (2, edges))),
                edge_attr=torch.from_numpy(rng.normal(size=(edges, 2))),
                y=torch.from_numpy(y),
            )
        )
    return sg.GraphStore.from_pyg(graphs, name="random")


def model_of(sync: bool, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = Net().double()
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if sync else model


def runner_of(
    model: nn.Module, plan: Any, mode: Any = "eager", **options: Any
) -> sg.StaticGraphRunner:
    return sgd_runner(model, plan, mode, rate=0.05, **options)


def ranked(
    sync: bool = True, mode: Any = "eager", **options: Any
) -> tuple[sg.GraphStore, sg.StaticGraphRunner]:
    """All graphs, and this rank's runner over a plan of them."""
    plan = sg.plan_buckets(store_of(), BATCH)
    return store_of(), runner_of(model_of(sync), plan, mode, **options)


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **{name: value.detach().clone() for name, value in model.state_dict().items()},
        **{f"{n}.grad": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None},
    }
