"""Mode ``fused``: the captured graph, rewritten, computes what plain PyG computes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.random_forward import RandomForward
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
from torch_geometric.nn import GCNConv, global_mean_pool

import staticgraph as sg
from staticgraph.kernels.neighbours import neighbours_of
from staticgraph.kernels.table_sum import fold_codes, table_sum


def layers_of(name: str) -> int:
    """Two layers, so that one passes results on to the next; one for variants of a name that
    already runs two."""
    return 1 if "," in name else 2


# Rewrites that must fire, by layer and by model; others are free to fire as well.
FIRES = {
    "gine": {"tables": 2, "neighbours": 2, "batch_norm": 4},
    "gine, own message": {"tables": 2, "neighbours": 1, "batch_norm": 1},
    "gcn": {"tables": 1, "gcn": 2, "batch_norm": 2},
    "gcn by hand, learnt weights": {"neighbours": 3},
    "sage": {"neighbours": 2},
    "own": {"neighbours": 2, "batch_norm": 2},
    "own, edge mlp": {"neighbours": 2},
    "own, differences": {"neighbours": 1},
    "molecule gin": {"tables": 3, "neighbours": 4, "batch_norm": 6},
    "molecule gcn": {"tables": 3, "neighbours": 5, "batch_norm": 4},
    "gps": {"tables": 2, "neighbours": 2, "batch_norm": 8},
    "pna": {"tables": 2, "small_tables": 2, "neighbours": 2, "cat_linear": 4, "batch_norm": 2},
    "pna, apart": {"neighbours": 3, "cat_linear": 2},
    "pna, one tower": {"neighbours": 1, "cat_linear": 1},
    "transformer": {"small_tables": 2, "softmax": 2, "neighbours": 2, "batch_norm": 2},
    "gat": {"softmax": 2, "neighbours": 2},
    "gat, edges": {"score_products": 1, "softmax": 1, "neighbours": 1},
    "gatv2": {"softmax": 2, "neighbours": 2},
}


@pytest.mark.sampled(6, always=["pna", "pna, apart", "own, differences", "gps"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_gradients_and_statistics_are_those_of_plain_pyg(name, esol):
    model = seeded(lambda: MODELS[name](layers=layers_of(name)))
    found = fired(assert_as_in_plain_pyg(model, esol))
    for rewrite, times in FIRES.get(name, {}).items():
        assert found[rewrite] == times, (rewrite, found)


class Cumulative(MoleculeGIN):
    """A message that no operator has."""

    def message(self, x_j, edge_attr):
        return x_j * torch.cumsum(edge_attr, 1) / 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("conv", "coded"), [(MoleculeGIN, True), (Cumulative, False)])
def test_tables_of_each_layer_are_read_by_one_code_where_a_sum_takes_it(conv, coded, esol):
    """Also where the model adds a neighbour's row to the tables' sum. If nothing reads by code, the
    tables are one lookup again and no trace of the code is left."""
    runner = assert_as_in_plain_pyg(seeded(lambda: VirtualNode(conv)), esol)
    calls = [node for node in captured(runner).graph.nodes if node.op == "call_function"]
    codes = [node for node in calls if node.target is fold_codes]
    lookups = [node for node in calls if node.target is table_sum]
    sums = [node for node in calls if node.target is neighbours_of]
    assert len(codes) == int(coded)
    assert len(lookups) == 3
    assert [node.args[2] for node in sums if node.args[2]] == 2 * [codes] * coded


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
    assert fired(runner)["neighbours"] == 2
    assert model.norms[1].weight.grad is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gine", "sage", "molecule gin"])
def test_evaluation_is_that_of_plain_pyg(name, esol):
    stock = MODELS[name]().double()
    in_plain_pyg(stock, esol)
    runner = sg.StaticGraphRunner(copy.deepcopy(stock), [CAPACITY], "fused")
    out = runner.predict(esol[IDS])
    assert torch.allclose(out, in_plain_pyg(stock.eval(), esol), rtol=0, atol=1e-10)


def fused(model, esol):
    """A runner that has run its model over a batch, and the batch."""
    runner = sg.StaticGraphRunner(model, [CAPACITY], "fused")
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner(batch)
    return runner, batch


def test_dropout_draws_anew_each_step_and_repeats_with_the_seed(esol):
    runner, batch = fused(Trunk(gine, dropout=0.5), esol)
    assert_drawn_by_seed(runner, batch)
    assert fired(runner)["dropout_sum"] == 2


def test_a_frozen_layer_and_a_changed_flag_are_seen(esol):
    """torch handles gradients itself; values that tracing read are guarded."""
    model = Trunk(gine)
    runner, batch = fused(model, esol)
    model.head[0].weight.requires_grad_(False)
    runner(batch).sum().backward()
    assert model.head[0].weight.grad is None
    assert model.head[2].weight.grad is not None
    model.norms[0].eps = 1e-3
    with pytest.raises(sg.NotStatic, match="compiled again"):
        runner(batch)


# Steps of a forward, as in test_rewrites_random.py, with weights of edges that a layer computes.
WEIGHED = {
    "gcn": "h1 = self.extra(h0, edge_index, e0[:, 0].sigmoid())",
    "neighbours": "h1 = scatter(e0[:, :1].sigmoid() * (h0[src] + h0[dst]).relu(), dst, 0, n)",
}


@pytest.mark.parametrize("rewrite", WEIGHED)
def test_a_layer_below_a_rewrite_may_be_trained_later(rewrite, esol):
    """The program was inserted while the edge weights needed no gradient."""
    model = seeded(lambda: RandomForward(WEIGHED[rewrite], GCNConv(8, 8)))
    model.bond.requires_grad_(False)
    plain = copy.deepcopy(model)
    runner, batch = fused(model, esol)
    assert fired(runner)[rewrite] == 1
    for each in (model, plain):
        each.bond.requires_grad_(True)
    runner(batch).sum().backward()
    in_plain_pyg(plain, esol).sum().backward()
    torch.testing.assert_close(model.bond.weight.grad, plain.bond.weight.grad)
