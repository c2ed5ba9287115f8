"""Edges pooled by their graph, ``batch[edge_index[0]]``: supported, never mistaken for nodes."""

from __future__ import annotations

import pytest
import torch
from support.rewritten import CAPACITY, IDS, assert_as_in_plain_pyg, difference, fired, seeded
from support.runners import made_runner
from torch import nn
from torch_geometric.nn import global_add_pool, global_mean_pool
from torch_geometric.utils import scatter, softmax

import staticgraph as sg
from staticgraph.errors import NotStatic


class Edges(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(9, 8)
        self.score = nn.Linear(16, 3)

    def scores(self, x, edge_index):
        h = torch.tanh(self.first(x.to(self.first.weight)))
        return self.score(torch.cat([h[edge_index[0]], h[edge_index[1]]], -1))


class Sized(Edges):
    def forward(self, x, edge_index, batch, batch_size):
        scores, graph = self.scores(x, edge_index), batch[edge_index[0]]
        pooled = [scatter(scores, graph, 0, batch_size, each) for each in ("sum", "mean", "max")]
        shares = softmax(scores, batch[edge_index[1]], num_nodes=batch_size)
        third = scatter((shares * scores).view(-1, 3, 1), graph, 0, batch_size)
        return torch.cat([*pooled, third.squeeze(-1)], -1)


class Unsized(Edges):
    """The number of graphs follows from what is indexed."""

    def forward(self, x, edge_index, batch):
        scores, source = self.scores(x, edge_index), edge_index[0]
        pooled = [
            global_mean_pool(scores, batch[source]),
            scatter(scores, batch.index_select(0, source).long(), 0, reduce="max"),
            global_add_pool(
                softmax(scores, torch.index_select(batch, 0, source)) * scores, batch[source]
            ),
        ]
        return torch.cat(pooled, -1)


class Copied(Edges):
    """Of a copy of ``batch`` only its values tell."""

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.scores(x, edge_index), batch.clone()[edge_index[0]])


def test_reductions_over_the_edges_of_a_graph_go_by_pointers(esol):
    runner = assert_as_in_plain_pyg(seeded(Sized), esol)
    assert fired(runner)["pools"] == 5


@pytest.mark.parametrize("mode", ["fused", "eager"])
def test_an_index_of_graphs_needs_no_size(mode, esol):
    largest, runner = difference(seeded(Unsized), esol, mode)
    assert largest <= 1e-10
    assert mode == "eager" or fired(runner)["pools"] == 4
    assert sg.check(Unsized(), [CAPACITY], esol)


def test_a_copy_of_graphs_without_a_size_is_refused_and_not_taken_for_nodes(esol):
    runner = made_runner(Copied(), [CAPACITY], "eager", check_padding=False)
    with pytest.raises(NotStatic, match=r"names graphs: index batch itself \(batch\[edge_index"):
        runner(sg.StaticBatch.of(esol, IDS, CAPACITY))


def test_the_preflight_names_the_line_and_the_remedy(esol):
    report = sg.check(Copied(), [CAPACITY], esol)
    assert not report
    said = str(report)
    assert "names graphs" in said
    assert "global_add_pool(self.scores(x, edge_index)" in said


class Nodes(Edges):
    """A copy of the destinations still names nodes."""

    def forward(self, x, edge_index, batch):
        out = scatter(self.scores(x, edge_index), edge_index[1].clone(), 0)
        return out.sum() + global_add_pool(self.first(x.to(self.first.weight)), batch)


def test_a_copy_of_the_destinations_still_names_nodes(esol):
    runner = made_runner(Nodes(), [CAPACITY], "eager", check_padding=False)
    assert runner(sg.StaticBatch.of(esol, IDS, CAPACITY)).shape == (9, 8)
