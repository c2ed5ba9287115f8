"""Edges pooled by their graph, ``batch[edge_index[0]]``: supported, never mistaken for nodes."""

from __future__ import annotations

import pytest
from support.random_forward import RandomForward
from support.rewritten import CAPACITY, IDS, assert_as_in_plain_pyg, difference, fired, seeded
from support.runners import made_runner

import staticgraph as sg
from staticgraph.errors import NotStatic

# Steps of a forward, as in test_rewrites_random.py.
SIZED = """
graph = batch[src]
pooled = [scatter(e0, graph, 0, batch_size, each) for each in ('sum', 'mean', 'max')]
shares = softmax(e0, batch[dst], num_nodes=batch_size)
third = scatter((shares * e0).view(-1, 8, 1), graph, 0, batch_size)
h1 = sum(pooled)[batch] + third.squeeze(-1)[batch]"""
# The number of graphs follows from what is indexed.
UNSIZED = """
h1 = utils.scatter(e0, batch[src], 0, reduce='mean')[batch]
h2 = scatter(e0, batch.index_select(0, src).long(), 0, reduce='max')[batch]
shares = softmax(e0, torch.index_select(batch, 0, src))
h3 = scatter(shares * e0, batch[src])[batch]"""
# Of a copy of the batch only its values tell; a copy of the destinations still names nodes.
COPIED = "h1 = scatter(e0, batch.clone()[src], 0)[batch]"
NODES = "h1 = scatter(e0, dst.clone(), 0)"


def of_steps(steps):
    return seeded(lambda: RandomForward(steps.strip()))


def test_reductions_over_the_edges_of_a_graph_go_by_pointers(esol):
    runner = assert_as_in_plain_pyg(of_steps(SIZED), esol)
    assert fired(runner)["pools"] == 5 + 1


@pytest.mark.parametrize("mode", ["fused", "eager"])
def test_an_index_of_graphs_needs_no_size(mode, esol):
    largest, runner = difference(of_steps(UNSIZED), esol, mode)
    assert largest <= 1e-10
    assert mode == "eager" or fired(runner)["pools"] == 4 + 1
    assert sg.check(of_steps(UNSIZED), [CAPACITY], esol)


def test_a_copy_of_graphs_without_a_size_is_refused_and_not_taken_for_nodes(esol):
    runner = made_runner(of_steps(COPIED), [CAPACITY], "eager", check_padding=False)
    with pytest.raises(NotStatic, match=r"names graphs: index batch itself \(batch\[edge_index"):
        runner(sg.StaticBatch.of(esol, IDS, CAPACITY))


def test_the_preflight_names_the_line_and_the_remedy(esol):
    report = sg.check(of_steps(COPIED), [CAPACITY], esol)
    assert not report
    (obstacle,) = report.obstacles
    assert obstacle.where.endswith(":4")  # three lines stand before the first step
    assert "names graphs" in str(report)


def test_a_copy_of_the_destinations_still_names_nodes(esol):
    runner = made_runner(of_steps(NODES), [CAPACITY], "eager", check_padding=False)
    assert runner(sg.StaticBatch.of(esol, IDS, CAPACITY)).shape == (9, 8)
