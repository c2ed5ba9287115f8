"""Ten graphs with labels of every kind, of which a few may be missing, and their capacity."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

CAPACITY = (60, 70, 12)
NAN = float("nan")


def labelled_graphs(missing: bool = True) -> list[Data]:
    """Returns ten graphs in float64, with three float targets and three of integers or truth."""
    generator = torch.Generator().manual_seed(0)

    def real(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    graphs = []
    for number in range(10):
        n = 2 + number % 4
        data = Data(
            x=real(n, 3),
            edge_index=torch.zeros(2, n + 1, dtype=torch.int64),
            energy=real(1),
            gap=real(1),
            tasks=real(1, 3),
            kind=torch.tensor([number % 3]),
            weight=real(1).abs(),
            charge=real(n),
            train_mask=torch.rand(n, generator=generator) < 0.6,
            colour=torch.randint(3, (n,), generator=generator),
        )
        if missing and number % 3 == 0:
            data.energy[:] = NAN
        if missing and number % 4 == 1:
            data.gap[:] = NAN
            data.tasks[0, number % 3] = NAN
            data.charge[0] = NAN
        graphs.append(data)
    return graphs
