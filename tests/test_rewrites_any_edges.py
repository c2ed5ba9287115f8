"""Messages over edges that are not the batch's own, or that keep the order of the data set: fused,
and equal to plain PyG."""

from __future__ import annotations

import pytest
import torch
from support.rewritten import difference, fired, seeded
from support.written_by_hand import MODELS
from torch import nn
from torch_geometric.nn import (
    GATConv,
    global_add_pool,
)
from torch_geometric.utils import add_self_loops, remove_self_loops, scatter


class Over(nn.Module):
    """Two messages over the edges that a function makes of the batch's."""

    def __init__(self, edges):
        super().__init__()
        self.first, self.row = nn.Linear(9, 8), nn.Linear(3, 8)
        self.edges = edges

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.first(x.to(self.first.weight)).tanh()
        src, dst, kept = self.edges(edge_index)
        for _ in range(2):
            message = (h[src] + self.row(edge_attr.to(h))[kept]).tanh() * h[dst].sigmoid()
            h = h + scatter(message, dst, 0, len(h)) - scatter(message, dst, 0, len(h), "max")
        return global_add_pool(h, batch)


def against(edges):
    return *edges.flip(0), slice(None)


def shuffled(edges):
    order = torch.arange(0, edges.size(1), 2, device=edges.device).flip(0)
    return *edges[:, order], order


def in_two_vectors(edges):
    order = torch.arange(edges.size(1), device=edges.device).roll(3)
    return edges[0].index_select(0, order), edges[1].index_select(0, order), order


@pytest.mark.parametrize("edges", [against, shuffled, in_two_vectors])
def test_messages_over_edges_that_a_model_makes(edges, esol):
    largest, runner = difference(seeded(lambda: Over(edges)), esol.in_first_order())
    assert largest <= 1e-10
    assert fired(runner)["neighbours"] == 2 * 2


class BySource(Over):
    """The largest message that leaves each node, next to the sum of those that enter it."""

    def forward(self, x, edge_index, edge_attr, batch):
        h, (src, dst) = self.first(x.to(self.first.weight)).tanh(), edge_index
        message = (h[src] * 2 + h[dst]).tanh()
        largest = scatter(message, src, 0, len(h), "max")
        h = h * largest + scatter(message, dst, 0, len(h)) + scatter(h[src], dst, 0, len(h), "max")
        return global_add_pool(h, batch)


class AgainstTheFlow(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(9, 8)
        self.conv = GATConv(8, 4, heads=2, flow="target_to_source", add_self_loops=False)

    def forward(self, x, edge_index, batch):
        h = self.conv(self.first(x.to(self.first.weight)), edge_index)
        return global_add_pool(h, batch)


class LoopsBeside(Over):
    """CAL: each layer has edges of its own, whose weights, summed by source, may be those learned
    of the layer before."""

    def forward(self, x, edge_index, batch):
        h = self.first(x.to(self.first.weight)).tanh()
        weight = h.new_ones(len(edge_index[0]))
        for _ in range(2):
            edges, kept = remove_self_loops(edge_index, weight)
            (src, dst), _ = add_self_loops(edges, num_nodes=len(h))
            kept = torch.cat([kept, h.new_ones(len(h))])
            degree = h.new_zeros(len(h)).scatter_add_(0, self.edges(src), kept.float().to(h))
            h = scatter(h[src] * (kept / degree[src]).unsqueeze(1), dst, 0, len(h)).sigmoid()
            weight = h[edge_index[0], 0]
        return global_add_pool(h, batch)


@pytest.mark.parametrize(
    ("kind", "rewrite", "times"),
    [
        (lambda: BySource(None), "neighbours", 3),
        (AgainstTheFlow, "softmax", 1),
        (lambda: LoopsBeside(lambda src: src.expand(len(src))), "neighbours", 4),
        (lambda: LoopsBeside(torch.clone), "neighbours", 2),
    ],
)
def test_messages_over_edges_in_other_ways(kind, rewrite, times, esol):
    largest, runner = difference(seeded(kind), esol.in_first_order())
    assert largest <= 1e-10
    assert fired(runner)[rewrite] >= times


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["gine", "gcn", "gat, edges", "gatv2", "pna", "transformer"])
def test_edges_in_the_order_of_the_data_set(name, esol):
    """All that is fused of a batch whose edges are sorted is fused of one whose edges are not."""
    store, counts = esol.in_first_order(), []
    for one in (esol, store):
        largest, runner = difference(seeded(MODELS[name]), one)
        assert largest <= 1e-9
        counts.append(fired(runner))
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) > 2
