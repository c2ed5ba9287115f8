"""One GINE layer over the molecules of HIV: net, loss, optimizer and batches of two buckets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GINEConv, global_add_pool

import staticgraph as sg
from support.runners import made_runner

CAPACITIES = [(900, 1900, 33), (1400, 3000, 34)]


class Net(nn.Module):
    """One GINE layer with BatchNorm, and optional dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.atoms = nn.Linear(9, 8)
        self.bonds = nn.Linear(3, 8)
        self.conv = GINEConv(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        x, edge_attr = x.to(self.atoms.weight), edge_attr.to(self.atoms.weight)
        h = self.conv(self.atoms(x), edge_index, self.bonds(edge_attr))
        return self.head(self.dropout(global_add_pool(h, batch)) / 30)


def bce(out, batch):
    return F.binary_cross_entropy_with_logits(out, batch.y, reduction="none")


def adam(model, lr=None):
    """Returns Adam with a float32 learning rate, as in a recording, so that eager rounds alike."""
    lr = torch.tensor(1e-2) if lr is None else lr
    return torch.optim.Adam(model.parameters(), lr=lr, fused=True, capturable=True)


def batches_of(hiv, count=20):
    """Returns batches of both buckets in turn: A, B, A, ..."""
    plan = sg.BucketPlan.of(CAPACITIES)
    return [
        sg.StaticBatch.of(hiv, range(30 * i, 30 * i + 30), plan.capacities[i % 2], i % 2)
        for i in range(count)
    ]


def eager_of(model, optimizer, **options):
    return made_runner(model, CAPACITIES, mode="eager", loss=bce, optimizer=optimizer, **options)


def fixed(batch):
    """Removes the batch's real counts, as a recorded step sees it."""
    batch.real = None
    return batch
