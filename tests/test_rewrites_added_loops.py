"""Self-loops added to the edges, and GCN's normalisation written out, as in tutorials."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import assert_as_in_plain_pyg, difference, fired, missed, seeded
from support.runners import made_runner
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, global_add_pool
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, degree, scatter

import staticgraph as sg


class Tutorial(MessagePassing):
    """The layer of PyG's message passing tutorial, verbatim."""

    def __init__(self, aggr="add"):
        super().__init__(aggr=aggr)
        self.lin = nn.Linear(16, 16, bias=False)
        self.bias = nn.Parameter(torch.randn(16))

    def forward(self, x, edge_index):
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        x = self.lin(x)
        row, col = edge_index
        deg = degree(col, x.size(0), dtype=x.dtype)
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        return self.propagate(edge_index, x=x, norm=norm) + self.bias

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Activated(Tutorial):
    def message(self, x_j, norm):
        return norm.view(-1, 1) * F.relu(x_j)


class Largest(Tutorial):
    def __init__(self):
        super().__init__("max")


class Mixing(Tutorial):
    """A norm over all messages together, so that a self-loop has no message of its own."""

    def message(self, x_j, norm):
        return F.layer_norm(x_j, x_j.shape) * norm.view(-1, 1)


class ByHand(nn.Module):
    """Self-loops concatenated by hand, with one end and the difference of both in the message."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(32, 16)
        self.own = nn.Linear(16, 16)

    def forward(self, x, edge_index):
        loops = torch.arange(x.size(0), device=x.device)
        edges = torch.cat([edge_index, torch.stack([loops, loops])], dim=1)
        row, col = edges
        m = torch.tanh(self.lin(torch.cat([x[col], x[row] - x[col]], -1)))
        return scatter(m, col, 0, x.size(0)) + self.own(x)


class Filled(nn.Module):
    """Self-loops that carry a number, summed by source."""

    def forward(self, x, edge_index):
        weight = torch.sigmoid(x[edge_index[0], 0] - x[edge_index[1], 1])
        edges, weight = add_self_loops(edge_index, weight, fill_value=2.0, num_nodes=x.size(0))
        out = scatter(x[edges[1]] * weight[:, None], edges[0], 0, x.size(0))
        return out / scatter(weight, edges[0], 0, x.size(0))[:, None]


class Remaining(nn.Module):
    """A self-loop only on nodes without one, with learnt edge weights."""

    def forward(self, x, edge_index):
        weight = torch.sigmoid(x[edge_index[0], 0] - x[edge_index[1], 1])
        edges, weight = add_remaining_self_loops(edge_index, weight, 1.0, x.size(0))
        row, col = edges
        root = scatter(weight, col, 0, x.size(0)).rsqrt()
        weight = root[row] * weight * root[col]
        return scatter(x[row] * weight[:, None], col, 0, x.size(0))


class RemainingUnweighed(nn.Module):
    def forward(self, x, edge_index):
        edges, _ = add_remaining_self_loops(edge_index, num_nodes=x.size(0))
        return scatter(torch.tanh(x[edges[0]]), edges[1], 0, x.size(0))


class Without(nn.Module):
    """GCN's normalisation without self-loops: ``rsqrt``, column tensors and edge weights."""

    def forward(self, x, edge_index):
        src, dst = edge_index
        root = degree(dst, x.size(0), x.dtype).clamp(min=1).rsqrt().unsqueeze(1)
        with torch.no_grad():
            weight = torch.sigmoid((x[src] - x[dst]).sum(-1, keepdim=True))
        weight = weight.detach() * 2
        return torch.zeros_like(x).index_add_(0, dst, x[src] * root[src] * weight * root[dst])


class Trunk(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first = nn.Linear(9, 16)
        self.layers = nn.ModuleList([layer(), layer()])

    def forward(self, x, edge_index, batch):
        h = self.first(x.to(self.first.weight))
        for layer in self.layers:
            h = torch.tanh(layer(h, edge_index))
        return global_add_pool(h, batch)


FIRE = {
    Tutorial: {"neighbours": 2 if torch.__version__ < "2.12" else 3, "added_loops": 3},
    Activated: {"added_loops": 3},
    Largest: {"added_loops": 1},
    ByHand: {"added_loops": 0, "neighbours": 2},
    Filled: {"added_loops": 4, "neighbours": 4},
    Remaining: {"added_loops": 4, "neighbours": 4},
    RemainingUnweighed: {"added_loops": 2},
    Without: {"added_loops": 0, "neighbours": 2},
}


def with_loops():
    """Graphs in which some edges are already self-loops, once or twice."""
    graphs = []
    for number in range(1060):
        ends = [[0, 1, 1, 2, 2, 2], [1, 0, 1, 1, 2, 2]]
        x = (torch.arange(27).view(3, 9) * (number + 1)) % 5
        graphs.append(Data(x=x, edge_index=torch.tensor(ends), y=torch.zeros(1, 1)))
    return sg.GraphStore.from_pyg(graphs)


@pytest.mark.sampled(3, always=["Remaining"])
@pytest.mark.parametrize("layer", FIRE)
def test_it_is_as_in_plain_pyg_and_served(layer, esol):
    runner = assert_as_in_plain_pyg(seeded(lambda: Trunk(layer)), esol)
    found = fired(runner)
    assert {name: found[name] for name in FIRE[layer]} == FIRE[layer]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", [Tutorial, ByHand, Filled, Remaining, RemainingUnweighed])
def test_loops_of_the_data_are_edges_like_others(layer):
    largest, _ = difference(seeded(lambda: Trunk(layer)), with_loops())
    assert largest <= 1e-10


def test_what_mixes_edges_and_loops_is_named(esol):
    runner = assert_as_in_plain_pyg(seeded(lambda: Trunk(Largest)), esol)
    assert "the max over edges and added loops" in missed(runner)
    runner = made_runner(Trunk(Mixing).double(), [(210, 430, 9)], "fused", check_padding=False)
    runner(sg.StaticBatch.of(esol, [3, 1, 4], (210, 430, 9)))
    assert "layer_norm of edges and added loops together" in missed(runner)
