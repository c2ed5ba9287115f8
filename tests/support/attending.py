"""A model that attends, and batches of graphs of given sizes for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn
from torch_geometric.nn import GPSConv, global_add_pool

import staticgraph as sg


def batch_of(sizes: list[int], capacity: sg.Capacity, dtype: type = np.float64) -> sg.StaticBatch:
    nodes = np.array(sizes, dtype=np.int64)
    none = np.empty(0, np.int64)
    random = np.random.default_rng(0)
    store = sg.GraphStore.from_arrays(
        nodes,
        np.zeros(len(nodes), np.int64),
        none,
        none,
        {
            "x": ("node", random.standard_normal((nodes.sum(), 8)).astype(dtype)),
            "y": ("graph", random.standard_normal((len(nodes), 2)).astype(dtype)),
        },
    )
    return sg.StaticBatch.of(store, range(len(nodes)), capacity)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gps = GPSConv(8, None, heads=2, norm=None)
        self.head = nn.Linear(8, 2)

    def forward(self, data):
        return self.head(global_add_pool(self.gps(data.x, None, data.batch), data.batch))


@st.composite
def batches(draw):
    """Draws any sizes that fit, including one huge graph, equal graphs and empty graphs."""
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=20))
    spare = draw(st.integers(0, 30))
    graphs = len(sizes) + 1 + draw(st.integers(1, 3))
    nodes = sum(sizes) + 1 + spare
    widest = min(max([1, *sizes]) + draw(st.integers(0, 9)), max(1, nodes - 1))
    return sizes, sg.Capacity.distinct(nodes, nodes + 40, graphs, widest)


def assert_drops_its_share(draw_mask: Any, nodes: int = 60, p: float = 0.25) -> None:
    """Asserts that dropout among pairs keeps its share, and goes by seed, site and head."""
    heads, half = 2, nodes // 2
    starts = torch.tensor([0, nodes, nodes, nodes + half], dtype=torch.int32)
    seed = torch.tensor([7])
    alive = draw_mask(starts, seed, heads, nodes, 1, p)
    assert torch.equal(alive, draw_mask(starts, seed, heads, nodes, 1, p))
    pairs = torch.block_diag(torch.ones(nodes, nodes), torch.ones(half, half)).bool()
    assert not alive[:, ~pairs].any()
    count = heads * int(pairs.sum())
    assert abs(alive[:, pairs].double().mean() - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5
    others = (
        draw_mask(starts, seed, heads, nodes, 2, p),
        draw_mask(starts, seed + 1, heads, nodes, 1, p),
        alive.flip(0),
    )
    for other in others:
        same = (alive == other)[:, pairs].double().mean()
        assert abs(same - (p * p + (1 - p) ** 2)) < 5 * (0.5 / count) ** 0.5
