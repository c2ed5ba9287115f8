"""The smallest model over graphs, for tests of what a runner does around a model."""

from __future__ import annotations

from torch import nn
from torch_geometric.nn import global_add_pool


class Linear(nn.Module):
    """The smallest model over graphs, called by parameter names."""

    def __init__(self, level: str = "graph") -> None:
        super().__init__()
        self.level = level
        self.linear = nn.Linear(9, 2)

    def forward(self, x, edge_index, batch=None, batch_size=None):
        h = self.linear(x.float())
        if self.level == "node":
            return h
        if self.level == "edge":
            return h[edge_index[0]] - 2 * h[edge_index[1]]
        return global_add_pool(h, batch, batch_size)
