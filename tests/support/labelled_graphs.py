"""Ten graphs with labels of every kind, of which a few may be missing, and their capacity."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

from support.graphs import drawn_graphs

CAPACITY = (60, 70, 12)
NAN = float("nan")


def labelled_graphs(missing: bool = True) -> list[Data]:
    """Returns ten graphs in float64, with targets of floats, integers and booleans."""
    graphs = drawn_graphs(
        (2 + number % 4 for number in range(10)),
        x=("node", 3),
        energy=("graph",),
        gap=("graph",),
        tasks=("graph", 3),
        weight=("graph",),
        charge=("node",),
    )
    for number, data in enumerate(graphs):
        data.kind = torch.tensor([number % 3])
        data.train_mask, data.colour = data.charge < 0.3, torch.arange(data.num_nodes) % 3
        if missing and number % 3 == 0:
            data.energy[:] = NAN
        if missing and number % 4 == 1:
            data.gap[:] = NAN
            data.tasks[0, number % 3] = NAN
            data.charge[0] = NAN
    return graphs
