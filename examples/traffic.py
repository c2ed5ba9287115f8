"""Predicts each router's next load from a window of twelve: a GRU over time, a GCN over links."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import staticgraph as sg

STEPS = 12


def window(generator: torch.Generator) -> Data:
    """Makes 8 to 40 routers with loads by hour and neighbours; one label in ten is missing."""
    routers = int(torch.randint(8, 41, (1,), generator=generator))
    links = torch.randint(routers, (2, 3 * routers), generator=generator)
    share = torch.rand(3 * routers, generator=generator)
    load, loads = torch.rand(routers, generator=generator), []
    hour = 24 * float(torch.rand(1, generator=generator))
    for step in range(STEPS + 1):
        loads.append(load)
        arriving = torch.zeros(routers).index_add(0, links[1], share * load[links[0]])
        daily = 0.5 + 0.5 * math.sin((hour + step) * math.pi / 12)
        load = 0.5 * load + 0.2 * arriving + 0.3 * daily
    y = loads[-1].clone()
    y[torch.rand(routers, generator=generator) < 0.1] = math.nan  # not measured
    x = torch.stack(loads[:-1], dim=1)[..., None]  # [n, 12, 1]
    return Data(x=x, edge_index=links, edge_weight=share, y=y[:, None])


class Forecast(nn.Module):
    """Predicts one number per router."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(1, width, batch_first=True)
        self.conv = GCNConv(width, width)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        own = self.gru(x)[1][0]  # [N, width], the last state
        near = self.conv(own, edge_index, edge_weight).relu()
        return self.head(torch.cat([own, near], dim=1))


def main(windows: int = 1000, epochs: int = 10, width: int = 32) -> float:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    store = sg.GraphStore.from_pyg([window(generator) for _ in range(windows)], progress=False)
    cut = windows * 4 // 5
    plan = sg.plan_buckets(store, batch_size=16, indices=range(cut))
    net = Forecast(width)
    runner = sg.StaticGraphRunner(
        net,
        plan,
        loss=lambda out, batch: (out - batch.y).square(),  # NaN labels are left out
        optimizer=torch.optim.Adam(net.parameters(), lr=3e-3),
    ).warmup()
    train = runner.loader(store, indices=range(cut), shuffle=True)
    test = runner.loader(store, indices=range(cut, windows), exact=False)
    error = math.inf
    for epoch in range(epochs):
        for batch in train:
            runner.step(batch)
        total, known = 0.0, 0
        for batch in test:
            off = (runner.eval_step(batch).out - batch.y).abs()[batch.node_mask]
            total, known = total + float(off.nansum()), known + int((~off.isnan()).sum())
        error = total / known
        print(f"epoch {epoch}: mean absolute error of windows not seen {error:.4f}")
    return error


if __name__ == "__main__":
    main()
