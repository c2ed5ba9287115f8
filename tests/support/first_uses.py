"""Imported by the fork server before it forks: what a first loop and a first layer load."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

import staticgraph as sg

EDGES = torch.zeros(2, 1, dtype=torch.int64)
STORE = sg.GraphStore.from_pyg([Data(x=torch.ones(1, 1), edge_index=EDGES)], progress=False)
PLAN = sg.plan_buckets(STORE, batch_size=1)
RUNNER = sg.StaticGraphRunner(sg.convert(torch.nn.Linear(1, 1)), PLAN)
