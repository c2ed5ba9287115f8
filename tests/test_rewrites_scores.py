"""Attention whose scores are nearly those of GAT or GATv2: left to torch, or still correct."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import assert_as_in_plain_pyg, fired, seeded
from torch import nn
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import scatter, softmax

HEADS = 3  # as many as columns per head, so a sum over the other has the same shape


class Attending(nn.Module):
    """Softmax over neighbours of a score that ``score`` computes from rows at both ends."""

    def __init__(self, score):
        super().__init__()
        self.score = score
        self.atoms, self.bonds = nn.Linear(9, HEADS**2), nn.Linear(3, HEADS**2)
        self.att = nn.Parameter(torch.randn(1, HEADS, HEADS))
        self.bias, self.head = nn.Parameter(torch.randn(1, HEADS)), nn.Linear(HEADS**2, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        rows = self.atoms(x.to(self.bias.dtype)).view(-1, HEADS, HEADS)
        edges = self.bonds(edge_attr.to(self.bias.dtype)).view(-1, HEADS, HEADS)
        src, dst = edge_index
        score = self.score(self, rows, edges, src, dst)
        weight = softmax(score, dst, num_nodes=len(x))
        summed = scatter(rows[src] * weight.unsqueeze(-1), dst, 0, len(x))
        return self.head(global_add_pool(F.elu(summed.flatten(1)), batch))


def of_pairs(model, rows, edges, src, dst):
    return (F.leaky_relu(rows[src] + rows[dst] + edges, 0.2) * model.att).sum(-1)


def of_pairs_said_otherwise(model, rows, edges, src, dst):
    return (model.att * F.leaky_relu(rows[src] + rows[dst] + edges, 0.2)).sum(2, keepdim=False)


def over_heads(model, rows, edges, src, dst):
    return (F.leaky_relu(rows[src] + rows[dst] + edges, 0.2) * model.att).sum(1)


def weighed_by_edges(model, rows, edges, src, dst):
    return (F.leaky_relu(rows[src] + rows[dst], 0.2) * edges).sum(-1)


def one_row_of_all_edges(model, rows, edges, src, dst):
    return (F.leaky_relu(rows[src] + rows[dst] + model.att, 0.2) * model.att).sum(-1)


def of_nodes(model, rows, edges, src, dst):
    one, other = (rows * model.att).sum(-1), (rows * model.att).sum(dim=-1)
    return F.leaky_relu(one[src] + other[dst] + (edges * model.att).sum(-1), 0.2)


def with_a_bias(model, rows, edges, src, dst):
    one = (rows * model.att).sum(-1)
    return F.leaky_relu(one[src] + one[dst] + model.bias, 0.2)


def of_nodes_over_heads(model, rows, edges, src, dst):
    one, other = (rows * model.att).sum(1), (rows * model.att).sum(-1)
    return F.leaky_relu(one[src] + other[dst] + (edges * model.att).sum(1), 0.2)


FIRES = {
    of_pairs: {"neighbour_attention": 1, "pair_score": 1},
    of_pairs_said_otherwise: {"neighbour_attention": 1, "pair_score": 1},
    over_heads: {"neighbour_attention": 1, "pair_score": 0},
    weighed_by_edges: {"neighbour_attention": 1, "pair_score": 0},
    one_row_of_all_edges: {"neighbour_attention": 1, "pair_score": 0},
    of_nodes: {"neighbour_attention": 1},
    with_a_bias: {"neighbour_attention": 0},
    of_nodes_over_heads: {"neighbour_attention": 1},
}


@pytest.mark.parametrize("score", FIRES, ids=lambda score: score.__name__)
def test_scores_are_added_up_as_the_model_says(score, esol):
    found = fired(assert_as_in_plain_pyg(seeded(lambda: Attending(score)), esol))
    for rewrite, times in FIRES[score].items():
        assert found[rewrite] == times, (rewrite, found)
