"""Self-loops added to the edges, and GCN's normalisation written out, as in tutorials."""

from __future__ import annotations

import pytest
import torch
from support.random_forward import RandomForward
from support.rewritten import CAPACITY, assert_as_in_plain_pyg, difference, fired, missed, seeded
from support.runners import made_runner
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_self_loops, degree

import staticgraph as sg


class Tutorial(MessagePassing):
    """The layer of PyG's message passing tutorial, verbatim."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin = nn.Linear(8, 8, bias=False)
        self.bias = nn.Parameter(torch.randn(8))

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


# Steps of a forward, as in test_rewrites_random.py; the first are the tutorial's.
NORMALISED = """
(row, col), _ = utils.add_self_loops(edge_index, num_nodes=n)
root = utils.degree(col, n, dtype=h0.dtype).pow(-0.5)
root[root == float('inf')] = 0
norm, rows = (root[row] * root[col]).view(-1, 1), self.product(h0)[row]
"""
# A norm over all messages together, so that a self-loop has no message of its own.
MIXING = NORMALISED + "h1 = scatter(F.layer_norm(rows, rows.shape) * norm, col, 0, n)"
WAYS = {
    "two layers": "h1 = self.extra[2](self.extra[1](h0, edge_index).tanh(), edge_index)",
    "of activated rows": NORMALISED + "h1 = scatter(norm * F.relu(rows), col, 0, n)",
    "the largest": NORMALISED + "h1 = scatter(norm * rows, col, 0, n, 'max')",
    "concatenated, with one end and the difference of both in the message": """
loops = torch.arange(n)
row, col = torch.cat([edge_index, torch.stack([loops, loops])], dim=1)
message = self.extra[0](torch.cat([h0[col], h0[row] - h0[col]], -1)).tanh()
h1 = scatter(message, col, 0, n)""",
    "of a number, summed by source": """
weight = torch.sigmoid(h0[src, 0] - h0[dst, 1])
edges, weight = utils.add_self_loops(edge_index, weight, fill_value=2.0, num_nodes=n)
total = scatter(h0[edges[1]] * weight[:, None], edges[0], 0, n)
h1 = total / scatter(weight, edges[0], 0, n)[:, None]""",
    "on nodes without one, with learnt edge weights": """
weight = torch.sigmoid(h0[src, 0] - h0[dst, 1])
(row, col), weight = utils.add_remaining_self_loops(edge_index, weight, 1.0, n)
root = scatter(weight, col, 0, n).rsqrt()
weight = root[row] * weight * root[col]
h1 = scatter(h0[row] * weight[:, None], col, 0, n)""",
    "on nodes without one": """
(row, col), _ = utils.add_remaining_self_loops(edge_index, num_nodes=n)
h1 = scatter(torch.tanh(h0[row]), col, 0, n)""",
    "none, with roots in columns and edge weights": """
root = utils.degree(dst, n, h0.dtype).clamp(min=1).rsqrt().unsqueeze(1)
with torch.no_grad():
    weight = torch.sigmoid((h0[src] - h0[dst]).sum(-1, keepdim=True))
weight = weight.detach() * 2
h1 = torch.zeros_like(h0).index_add_(0, dst, h0[src] * root[src] * weight * root[dst])""",
}


# How often a rewrite fires.
FIRES = {
    "two layers": {"neighbours": 2 if torch.__version__ < "2.12" else 3, "added_loops": 3},
    "of activated rows": {"added_loops": 2},
    "the largest": {"added_loops": 1},
    "concatenated, with one end and the difference of both in the message": {
        "added_loops": 0,
        "neighbours": 1,
    },
    "of a number, summed by source": {"added_loops": 2, "neighbours": 2},
    "on nodes without one, with learnt edge weights": {"added_loops": 2, "neighbours": 2},
    "on nodes without one": {"added_loops": 1},
    "none, with roots in columns and edge weights": {"added_loops": 0, "neighbours": 1},
}


def model_of(steps):
    layers = [nn.Linear(16, 8), Tutorial(), Tutorial()]
    return seeded(lambda: RandomForward(steps.strip(), nn.ModuleList(layers)))


@pytest.mark.sampled(3, always=["on nodes without one, with learnt edge weights"])
@pytest.mark.parametrize("way", FIRES)
def test_it_is_as_in_plain_pyg_and_served(way, esol):
    found = fired(assert_as_in_plain_pyg(model_of(WAYS[way]), esol))
    assert {name: found[name] for name in FIRES[way]} == FIRES[way]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", list(WAYS)[:-1])
def test_loops_of_the_data_are_edges_like_others(way):
    """Graphs in which some edges are already self-loops, once or twice."""
    ends, graphs = torch.tensor([[0, 1, 1, 2, 2, 2], [1, 0, 1, 1, 2, 2]]), []
    for number in range(1060):
        x, attr = ((torch.arange(3 * w).view(3, w) * (number + 1)) % 5 for w in (9, 6))
        graphs.append(Data(x=x, edge_index=ends, edge_attr=attr.view(6, 3), y=torch.zeros(1, 1)))
    largest, _ = difference(model_of(WAYS[way]), sg.GraphStore.from_pyg(graphs))
    assert largest <= 1e-10


def test_what_mixes_edges_and_loops_is_named(esol):
    runner = assert_as_in_plain_pyg(model_of(WAYS["the largest"]), esol)
    assert "the max over edges and added loops" in missed(runner)
    runner = made_runner(model_of(MIXING), [CAPACITY], "fused", check_padding=False)
    runner(sg.StaticBatch.of(esol, [3, 1, 4], CAPACITY))
    assert "layer_norm of edges and added loops together" in missed(runner)
