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
    MessagePassing,
    global_add_pool,
)
from torch_geometric.utils import scatter


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
    order = torch.arange(edges.size(1), device=edges.device).flip(0)
    return *edges[:, order], order


def every_second(edges):
    return *edges[:, ::2], slice(0, None, 2)


def in_two_vectors(edges):
    order = torch.arange(edges.size(1), device=edges.device).roll(3)
    return edges[0].index_select(0, order), edges[1].index_select(0, order), order


@pytest.mark.parametrize("edges", [against, shuffled, every_second, in_two_vectors])
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


def test_a_maximum_by_source(esol):
    largest, runner = difference(seeded(lambda: BySource(None)), esol)
    assert largest <= 1e-10
    assert fired(runner)["neighbours"] == 3


class AgainstTheFlow(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(9, 8)
        self.conv = GATConv(8, 4, heads=2, flow="target_to_source", add_self_loops=False)

    def forward(self, x, edge_index, batch):
        h = self.conv(self.first(x.to(self.first.weight)), edge_index)
        return global_add_pool(h, batch)


def test_attention_against_the_flow(esol):
    largest, runner = difference(seeded(AgainstTheFlow), esol)
    assert largest <= 1e-10
    assert fired(runner)["softmax"] == 1
    assert fired(runner)["neighbours"] >= 1


class AmongEdges(MessagePassing):
    """Rows of edges, which read those of the edges before them."""

    def __init__(self):
        super().__init__("add")
        self.first, self.row = nn.Linear(9, 8), nn.Linear(3, 8)

    def forward(self, x, edge_index, edge_attr, batch):
        h, e = self.first(x.to(self.first.weight)), self.row(edge_attr.to(self.row.weight))
        e = e + h[edge_index[0]]
        every = torch.arange(len(e), device=e.device)
        pairs = torch.stack([(every - 1).clamp(min=0), every])
        e = e + self.propagate(pairs, e=e)
        return global_add_pool(scatter(e.tanh(), edge_index[1], 0, len(h)), batch)

    def message(self, e_j, e_i):
        return (e_j - e_i).tanh()


def test_messages_among_edges(esol):
    largest, runner = difference(seeded(AmongEdges), esol.in_first_order())
    assert largest <= 1e-10
    assert fired(runner)["neighbours"] >= 2


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
