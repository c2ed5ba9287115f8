"""Mode ``fused``: the captured graph, rewritten, computes what plain PyG computes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import (
    CAPACITY,
    IDS,
    assert_as_in_plain_pyg,
    assert_drawn_by_seed,
    captured,
    fired,
    in_plain_pyg,
    seeded,
)
from support.written_by_hand import MODELS, MoleculeGIN, Trunk, VirtualNode, gine
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, MessagePassing, global_mean_pool

import staticgraph as sg
from staticgraph.kernels.table_sum import fold_codes, table_sum
from staticgraph.rewrites.layers import gradient_sums


def layers_of(name: str) -> int:
    """Two layers, so that one passes results on to the next; one for variants of a name that
    already runs two."""
    return 1 if "," in name or name == "attention by hand" else 2


# Rewrites that must fire, by layer and by model; others are free to fire as well.
FIRES = {
    "gine": {"tables": 2, "neighbour_sum": 2, "batch_norm": 4, "segments": 1},
    "gine, trained eps": {"tables": 2, "neighbour_sum": 1, "batch_norm": 2},
    "gine, own message": {"tables": 2, "neighbour_sum": 1, "batch_norm": 1, "segments": 1},
    "gcn": {"tables": 1, "gcn_sum": 2, "batch_norm": 2, "segments": 1},
    "gcn, no loops": {"gcn_sum": 1},
    "gcn by hand, learnt weights": {"gcn_sum": 1},
    "gcn, learnt weights": {"gcn_sum": 1},
    "sage": {"neighbour_sum": 2, "segments": 1},
    "own": {"neighbours": 2, "segments": 1, "batch_norm": 2},
    "own, gelu": {"neighbours": 1, "segments": 1},
    "own, smallest": {"neighbours": 1},
    "own, edge mlp": {"neighbours": 1, "segments": 2},
    "own, differences": {"neighbours": 1},
    "own, heads": {"neighbours": 1},
    "own, gated": {"neighbour_sum": 1},
    "by hand, index_add": {"neighbour_sum": 1},
    "by hand, scatter_add": {"neighbour_sum": 1},
    "by hand, scatter_reduce": {"neighbours": 1},
    "by hand, scatter mean": {"neighbour_sum": 1},
    "attention by hand": {"segments": 2, "neighbours": 2},
    "molecule gin": {
        "tables": 3,
        "neighbour_sum": 2,
        "neighbours": 2,
        "batch_norm": 6,
        "segments": 2,
    },
    "molecule gcn": {"tables": 3, "segments": 3, "neighbours": 5, "batch_norm": 4},
    "gps": {
        "tables": 2,
        "neighbour_sum": 2,
        "batch_norm": 8,
        "segments": 1,
    },
    "pna": {
        "tables": 2,
        "small_tables": 2,
        "neighbours": 2,
        "cat_linear": 4,
        "batch_norm": 2,
        "segments": 2,
    },
    "pna, apart": {"neighbours": 3, "cat_linear": 2},
    "pna, one tower": {"neighbours": 1, "cat_linear": 1},
    "transformer": {"small_tables": 2, "dot_attention": 2, "batch_norm": 2, "segments": 1},
    "gat": {"neighbour_attention": 2},
    "gat, edges": {"neighbour_attention": 1},
    "gatv2": {"neighbour_attention": 2, "pair_score": 2},
    "gatv2, edges": {"neighbour_attention": 1, "pair_score": 1},
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_gradients_and_statistics_are_those_of_plain_pyg(name, esol):
    model = seeded(lambda: MODELS[name](layers=layers_of(name)))
    found = fired(assert_as_in_plain_pyg(model, esol))
    for rewrite, times in FIRES.get(name, {}).items():
        assert found[rewrite] == times, (rewrite, found)


@pytest.mark.parametrize("name", ["gine", "gps"])
def test_gradients_handed_on_edge_by_edge_as_on_cuda(name, esol, monkeypatch):
    """Layers that read one table of edges sum its gradients by entry only once."""
    monkeypatch.setattr(gradient_sums, "edge_by_edge", lambda target: True)
    runner = assert_as_in_plain_pyg(seeded(MODELS[name]), esol)
    for rewrite, times in FIRES[name].items():
        assert fired(runner)[rewrite] == times
    calls = [node.target for node in captured(runner).graph.nodes]
    assert calls.count(each_edge) == 1
    assert calls.count(neighbour_sum_handed_on) == 2


class Cumulative(MoleculeGIN):
    """A message that no operator has."""

    def message(self, x_j, edge_attr):
        return x_j * torch.cumsum(edge_attr, 1) / 8


@pytest.mark.parametrize(("conv", "coded"), [(MoleculeGIN, True), (Cumulative, False)])
def test_tables_of_each_layer_are_read_by_one_code_where_a_sum_takes_it(conv, coded, esol):
    """Also where the model adds a neighbour's row to the tables' sum. If nothing reads by code, the
    tables are one lookup again and no trace of the code is left."""
    runner = assert_as_in_plain_pyg(seeded(lambda: VirtualNode(conv)), esol)
    calls = [node for node in captured(runner).graph.nodes if node.op == "call_function"]
    codes = [node for node in calls if node.target is fold_codes]
    lookups = [node for node in calls if node.target is table_sum]
    sums = [node for node in calls if node.target is neighbour_sum_handed_on]
    assert len(codes) == int(coded)
    assert len(lookups) == 3
    assert [node.kwargs.get("code") for node in sums] == 2 * codes


class SumOfLayers(Trunk):
    """OGB's network with JK="sum", with the last layer left out of the sum or detached."""

    def __init__(self, conv, detached):
        super().__init__(conv, edges=conv is gine)
        self.detached = detached

    def forward(self, x, edge_index, edge_attr, batch):
        edges = edge_attr if self.bonds is None else self.bonds(edge_attr)
        layers = [self.atoms(x)]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            layers.append(F.relu(norm(conv(layers[-1], edge_index, edges))))
        total = sum(layers[:-1])
        if self.detached:
            total = total + layers[-1].detach()
        return self.head(global_mean_pool(total, batch))


@pytest.mark.parametrize(("conv", "detached"), [(gine, True), (MoleculeGIN, False)])
def test_a_layer_that_no_loss_reads_has_no_gradient_rather_than_zeros(conv, detached, esol):
    """With a zero gradient, an optimizer would still decay the layer's weights."""
    model = seeded(lambda: SumOfLayers(conv, detached))
    runner = assert_as_in_plain_pyg(model, esol)
    assert fired(runner)["neighbour_sum"] == 2
    assert model.norms[1].weight.grad is None


@pytest.mark.parametrize("name", ["gine", "sage", "molecule gin"])
def test_evaluation_is_that_of_plain_pyg(name, esol):
    torch.manual_seed(0)
    stock = MODELS[name]().double()
    in_plain_pyg(stock, esol)
    runner = sg.StaticGraphRunner(copy.deepcopy(stock), [CAPACITY], "fused")
    out = torch.cat([runner.predict([esol[i] for i in IDS])])
    assert torch.allclose(out, in_plain_pyg(stock.eval(), esol), rtol=0, atol=1e-10)


def test_dropout_draws_anew_each_step_and_repeats_with_the_seed(esol):
    torch.manual_seed(0)
    model = Trunk(gine, dropout=0.5)
    runner = sg.StaticGraphRunner(model, [CAPACITY], "fused")
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner(batch)
    assert_drawn_by_seed(runner, batch)
    assert fired(runner)["dropout_sum"] == 2


def test_a_frozen_layer_and_a_changed_flag_are_seen(esol):
    """torch handles gradients itself; values that tracing read are guarded."""
    model = Trunk(gine)
    runner = sg.StaticGraphRunner(model, [CAPACITY], "fused")
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner(batch)
    model.head[0].weight.requires_grad_(False)
    runner(batch).sum().backward()
    assert model.head[0].weight.grad is None
    assert model.head[2].weight.grad is not None
    model.norms[0].eps = 1e-3
    with pytest.raises(sg.NotStatic, match="compiled again"):
        runner(batch)


class OnWeights(nn.Module):
    """GCN with edge weights computed by a layer."""

    def __init__(self):
        super().__init__()
        self.weigh, self.conv = nn.Linear(3, 1), GCNConv(9, 1)

    def forward(self, x, edge_index, edge_attr):
        weight = self.weigh(edge_attr.float()).sigmoid().view(-1)
        return self.conv(x.float(), edge_index, weight)


def test_a_layer_below_a_rewrite_may_be_trained_later(esol):
    """The GCN operator was inserted while the edge weights needed no gradient."""
    model = OnWeights()
    model.weigh.requires_grad_(False)
    plain = copy.deepcopy(model)
    runner = sg.StaticGraphRunner(model, [CAPACITY], "fused")
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner(batch)
    assert fired(runner)["gcn_sum"] == 1
    model.weigh.requires_grad_(True)
    plain.weigh.requires_grad_(True)
    runner(batch).sum().backward()
    graphs = Batch.from_data_list([esol[i] for i in IDS])
    plain(graphs.x, graphs.edge_index, graphs.edge_attr).sum().backward()
    torch.testing.assert_close(model.weigh.weight.grad, plain.weigh.weight.grad)


class Gate(MessagePassing):
    """Messages of a ReLU, each scaled by a number."""

    def forward(self, x, edge_index, e, w):
        return self.propagate(edge_index, x=x, e=e, w=w)

    def message(self, x_j, e, w):
        return w.view(-1, 1) * (x_j + e).relu()


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weigh, self.edge, self.conv = nn.Linear(3, 1), nn.Linear(3, 9), Gate()

    def forward(self, x, edge_index, edge_attr):
        weight = self.weigh(edge_attr.float()).sigmoid().view(-1)
        return self.conv(x.float(), edge_index, self.edge(edge_attr.float()), weight)


def test_a_layer_below_what_has_no_derivative_is_seen_when_it_is_trained_later(esol):
    """The operator has no derivative by these weights; on torch 2.11 it says so itself."""
    model = Gated()
    model.weigh.requires_grad_(False)
    runner = sg.StaticGraphRunner(model, [CAPACITY], "fused")
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner(batch)
    assert fired(runner)["neighbour_sum"] == 1
    model.weigh.requires_grad_(True)
    with pytest.raises((sg.NotStatic, ValueError), match=r"compiled again|have no gradient"):
        runner(batch)
