"""Where a condition fails, the captured graph is left alone and ``explain`` names the reason."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.alike import assert_same_state
from support.random_forward import RandomForward
from support.rewritten import CAPACITY, IDS, assert_as_in_plain_pyg, difference, fired, seeded
from support.runners import made_runner
from support.written_by_hand import EdgeMLP, OwnConv, Tables, Trunk, gatv2, gine
from torch import nn
from torch_geometric.nn import MessagePassing, global_add_pool
from torch_geometric.utils import scatter

import staticgraph as sg
from staticgraph.checking.explain import explain
from staticgraph.rewrites.neighbours import messages


class Layered(nn.Module):
    """One layer over linear encoders, and a sum."""

    def __init__(self, conv, hidden=8):
        super().__init__()
        self.atoms, self.bonds = nn.Linear(9, hidden), nn.Linear(3, hidden)
        self.conv = conv(hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h, edges = self.atoms(x.to(self.head.weight)), self.bonds(edge_attr.to(self.head.weight))
        return self.head(global_add_pool(self.conv(h, edge_index, edges), batch))


class Summing(MessagePassing):
    """Subclasses define what is summed."""

    def __init__(self, hidden):
        super().__init__(aggr="add")
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=self.lin(x), edge_attr=edge_attr)

    def message(self, x_j, edge_attr):
        return F.relu(x_j + edge_attr)


SUMMED = "sum of relu(linear_2[source] + edges)"


class OfEdges(Summing):
    """A sum by an index of nodes by which nothing is gathered."""

    def forward(self, x, edge_index, edge_attr):
        return x + scatter(edge_attr, edge_index.flip(0)[1], 0, x.size(0))


class Cumulative(Summing):
    """An operation that no program has."""

    def message(self, x_j, edge_attr):
        return torch.cumsum(x_j + edge_attr, -1)


# Steps of a forward, as in test_rewrites_random.py.
MESSAGES = {
    "of tanh": "h1 = scatter(torch.tanh(self.product(h0)[src] + e0), dst, 0, n)",
    "of two reductions, not side by side in the order in which they are computed": """
rows = torch.tanh(h0[src] + e0)
mean, largest = scatter(rows, dst, 0, n, 'mean'), scatter(rows, dst, 0, n, 'max')
h1 = self.extra[1](torch.cat([largest, mean], -1))""",
    "that is read again": """
e1 = F.relu(self.product(h0)[src] + e0)
h1 = scatter(e1, dst, 0, n) + 0 * e1.mean()""",
    "that is read again, the least": """
e1 = F.relu(self.product(h0)[src] + e0)
h1 = scatter(e1, dst, 0, n, 'min') + 0 * e1.mean()""",
    "of a part of the rows": "h1 = scatter(F.relu(self.product(h0)[src, :1] + e0), dst, 0, n)",
    "times a factor per column, of which there are as many as edges": """
rows = torch.tanh(self.extra[0](h0)[src])
h1 = scatter(rows * self.extra[0].bias, dst, 0, n).mean(1, True)""",
}


def of_message(name):
    extra = nn.ModuleList([nn.Linear(8, CAPACITY[1]), nn.Linear(16, 8)])
    return seeded(lambda: RandomForward(MESSAGES[name].strip(), extra))


def explained(conv, esol, **options):
    return explain(Layered(conv), [CAPACITY], esol, **options)


def reasons(found) -> dict[str, str]:
    return {place.rewrite: place.reason for place in found.missed}


def test_what_fits_is_rewritten_and_named_by_its_line(esol):
    found = explained(Summing, esol)
    sums = [place for place in found.done if place.rewrite == "neighbours"]
    assert [place.layer for place in sums] == ["conv"]
    assert "test_rewrites_explain.py" in sums[0].line
    assert [place.computes for place in sums] == [SUMMED]
    assert SUMMED in str(found)
    assert not found.missed


def test_a_broken_condition_is_said_and_the_result_stays(esol):
    found = explained(OfEdges, esol)
    assert "neighbours" not in {place.rewrite for place in found.done}
    (missed,) = (place for place in found.missed if place.rewrite == "neighbours")
    assert missed.reason == "its index is not the batch's own, and nothing is gathered by its edges"
    assert "conv" in missed.layer
    assert str(missed.reason) in str(found)
    assert difference(seeded(lambda: Layered(OfEdges)), esol)[0] <= 1e-10


@pytest.mark.sampled(3)
@pytest.mark.parametrize("message", MESSAGES)
def test_any_message_by_rows_is_one_pass(message, esol):
    runner = assert_as_in_plain_pyg(of_message(message), esol)
    assert fired(runner)["neighbours"] >= 1


def test_a_message_whose_code_would_be_too_long_stays(esol, monkeypatch):
    monkeypatch.setattr(messages, "MOST_NUMBERS", 7)
    runner = assert_as_in_plain_pyg(of_message("of tanh"), esol)
    assert "neighbours" not in fired(runner)


def failing(*_):
    raise RuntimeError("a slip")


def misplaced(captured):
    first, *_, last, _ = captured.graph.nodes
    first.prepend(last)


@pytest.mark.parametrize(
    ("place", "error", "name"),
    [
        ("passes.functionalize.written_by", failing, "functionalize failed"),
        ("layers.gradient_sums.rewrite", misplaced, "to one of .*neighbours.* failed"),
    ],
)
def test_an_error_of_a_rewrite_is_ours_and_names_it(place, error, name, esol, monkeypatch):
    monkeypatch.setattr(f"staticgraph.rewrites.{place}", error)
    runner = made_runner(Layered(Summing), [CAPACITY], "fused")
    with pytest.raises(sg.NotStatic, match=f"{name}, which is an error of staticgraph"):
        runner(sg.StaticBatch.of(esol, IDS, CAPACITY))


def test_the_unknown_activation_is_named_by_its_own_line(esol):
    (missed,) = explained(Cumulative, esol).missed
    assert missed.reason == "cumsum is computed apart from it"
    lines = Path(__file__).read_text().splitlines()
    number = int(missed.line.rpartition(":")[2])
    assert "torch.cumsum" in lines[number - 1]


def test_a_table_with_padding_stays(esol):
    class Padded(Tables):
        def __init__(self, sizes, hidden):
            super().__init__(sizes, hidden)
            self.tables[0].padding_idx = 0

    class Model(Trunk):
        def __init__(self):
            super().__init__(gine)
            self.atoms = Padded((53, 1, 5, 7, 5, 1, 3, 2, 2), 16)

    found = explain(Model(), [CAPACITY], esol)
    assert "padding_idx" in reasons(found)["tables"]


def test_the_model_that_is_explained_stays_as_it_was(esol):
    model = Trunk(gine).eval()
    before = copy.deepcopy(model.state_dict())
    explain(model, [CAPACITY], esol)
    assert not model.training
    assert type(model.norms[0]) is nn.BatchNorm1d
    assert_same_state(model, before)


class Forces(Layered):
    """Energies and their derivative by the node features, which training differentiates again."""

    def __init__(self, conv, hidden=8):
        super().__init__(conv, hidden)
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, x, edge_index, edge_attr, batch):
        x = x.to(self.head.weight) * self.head.weight.sum()
        h = self.norm(self.atoms(x)).square()
        h = self.conv(h, edge_index, self.bonds(edge_attr.to(h)))
        energy = self.head(global_add_pool(h, batch))
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy + global_add_pool(force.square().sum(-1, keepdim=True), batch)


class IndexAdd(nn.Module):
    """A sum with torch's own function, which becomes a different node of the captured graph."""

    def __init__(self, hidden):
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x, edge_index, edge_attr):
        rows = torch.relu(self.lin(x)[edge_index[0]] + edge_attr)
        return torch.zeros_like(x).index_add_(0, edge_index[1], rows)


@pytest.mark.sampled(4, always=["EdgeMLP"])
@pytest.mark.parametrize("conv", [Summing, OwnConv, IndexAdd, EdgeMLP, partial(gatv2, edge_dim=8)])
def test_where_the_forward_differentiates_messages_are_programs(conv, esol):
    """They have second derivatives, as the operator of norms has."""
    found = fired(assert_as_in_plain_pyg(seeded(lambda: Forces(conv)), esol))
    assert found["neighbours"] >= 1
    assert found["batch_norm"] == 1


class Shifted(nn.Module):
    """Each graph's nodes beside the sum of the next graph, as in a contrastive loss."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(9, 4)

    def forward(self, data):
        h = self.lin(data.x.float())
        graphs = global_add_pool(h, data.batch, data.num_graphs)
        following = (torch.arange(len(graphs), device=h.device) + 1) % data.num_real_graphs
        return h, graphs[following][data.batch]


def test_a_model_that_divides_by_the_number_of_graphs_is_warmed_up_with_graphs(hiv):
    model, plan, rows = Shifted(), sg.BucketPlan.of([CAPACITY]), {0: "node", 1: "node"}
    with pytest.raises(ValueError, match=r"say rows=\{'0': 'node'\}"):
        sg.check(model, plan, hiv, rewrites=True)
    assert sg.check(model, plan, hiv, rewrites=True, rows=rows).rewrites
    runner = sg.StaticGraphRunner(model, plan, "fused", rows=rows).warmup(hiv, ("eval",))
    batch = sg.StaticBatch.of(hiv, IDS, CAPACITY)
    for ours, expected in zip(runner.eval_step(batch).out, model.eval()(batch), strict=True):
        torch.testing.assert_close(ours, expected * batch.node_mask[:, None])
