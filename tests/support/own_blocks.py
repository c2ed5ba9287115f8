"""Models with their own dense blocks: of a minimum width, or several in succession."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.nn import GATConv
from torch_geometric.utils import to_dense_batch


class Ranked(nn.Module):
    """Keeps the first ``k`` nodes of each graph, from a block of width at least ``k``.

    Users write this by hand if a library has no layer for it. Several values of ``k`` are possible.
    """

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self.conv, self.counts = GATConv(8, 16), counts
        self.head = nn.Linear(16 * sum(counts), 2)

    def forward(self, data):
        h = self.conv(data.x.float(), data.edge_index).relu()
        _, mask = to_dense_batch(h, data.batch)  # the width of the widest graph, as a host number
        rows = []
        for k in self.counts:
            dense, _ = to_dense_batch(h, data.batch, max_num_nodes=max(mask.size(1), k))
            wide = dense.exp() * dense.sigmoid()
            rows.append((wide[:, :k] if wide.size(1) > k else wide).flatten(1))
        return self.head(torch.cat(rows, 1))
