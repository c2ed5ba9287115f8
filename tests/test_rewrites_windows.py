"""Time windows, ``[N, T, F]``: rows with more than one dimension and their norms; sums by source;
one edge network that a loop calls repeatedly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import assert_as_in_plain_pyg, captured, fired, seeded
from torch import nn
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import scatter


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(9, 12)
        self.edges = nn.Linear(3, 12)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, edge_index, edge_attr, batch):
        h = torch.tanh(self.first(x.to(self.first.weight))).view(-1, 3, 4)
        h = self.nodes(h, edge_index, edge_attr.to(h))
        return global_add_pool(h.flatten(1), batch)


class Window(Base):
    def nodes(self, h, edge_index, edge_attr):
        src, dst = edge_index
        weight = torch.sigmoid(edge_attr[:, 0]).view(-1, 1, 1)
        rows = torch.relu(h[src] + self.edges(edge_attr).view(-1, 3, 4))
        out = scatter(weight * h[src], dst, 0, h.size(0)) + scatter(rows, dst, 0, h.size(0))
        largest = scatter(h[src], dst, 0, h.size(0), "max")
        return out + torch.zeros_like(h).index_add_(0, dst, h[src]) + largest


class Normed(Base):
    """A norm over the channels of ``[N, C, T]``, as it follows temporal convolutions."""

    def nodes(self, h, edge_index, edge_attr):
        channels = h.transpose(1, 2).contiguous() * 3 + 1
        return F.relu(self.norm(channels).view(len(h), -1)).view_as(channels)


class BySource(Base):
    def nodes(self, h, edge_index, edge_attr):
        src, dst = edge_index
        summed = scatter(torch.tanh(h[dst]), src, 0, h.size(0))
        return summed + scatter(h[dst].flatten(1) * 2, src, 0, h.size(0), "mean").view_as(h)


class Called(Base):
    """Three rounds of one layer, which calls the edge network every time."""

    def nodes(self, h, edge_index, edge_attr):
        h = h.flatten(1)
        for _ in range(3):
            m = h[edge_index[0]] * torch.tanh(self.edges(edge_attr))
            h = torch.tanh(h + scatter(m, edge_index[1], 0, h.size(0)))
        return h


@pytest.mark.parametrize(
    ("build", "rewrite", "least"),
    [(Window, "neighbours", 4), (Normed, "batch_norm", 1), (BySource, "neighbours", 2)],
)
def test_windows_are_rows(build, rewrite, least, esol):
    assert fired(assert_as_in_plain_pyg(seeded(build), esol))[rewrite] >= least


def test_what_is_computed_again_of_the_same_is_computed_once(esol):
    runner = assert_as_in_plain_pyg(seeded(Called), esol)
    of_edges = [node for node in captured(runner).graph.nodes if "tanh" in str(node.target)]
    assert len(of_edges) == 1 + 3  # the first layer and each round; the first message has the other
    assert fired(runner)["neighbours"] == 4
