"""Both paths of attention equal plain PyG, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
from support.attending import Attending, batch_of
from support.parity import call, differences, plain_step, poisoned, static_step, unknown_counts
from support.rewritten import assert_drawn_by_seed
from support.runners import sgd_runner
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_geometric.data import Data
from torch_geometric.nn import GPSConv, global_add_pool

import staticgraph as sg
from staticgraph.dryrun.operations import OperationCounter
from staticgraph.sizes.attention import CPU_WIDEST, AttentionSetting, attention_path

BATCH = batch_of([60, 3, 8, 1, 17, 5, 9, 2, 30], sg.Capacity(170, 20, 14, 60))
# Graphs across borders of tiles, a graph larger than a tile, and tiles of padding only.
WIDE = batch_of([160, 3, 8, 1, 17, 50, 9, 2, 90], sg.Capacity(700, 20, 14, 160))


@pytest.mark.parametrize("known", [True, False], ids=["eager", "traced"])
@pytest.mark.parametrize(("path", "batch"), [("dense", WIDE), ("kernel", WIDE), ("auto", BATCH)])
def test_a_step_equals_plain_pyg(path, batch, known):
    """Outputs and gradients in float64, with garbage in the padding; traced as one graph."""
    model = Attending().double()
    expected = plain_step(model, call, batch)
    sg.convert(own := copy.deepcopy(model), attention=path)
    padded = poisoned(batch, 1000.0)
    if known:
        with OperationCounter() as counter:
            found, _ = static_step(own, call, padded)
        ran = sum(each["staticgraph::graph_attention"] for each in counter.counts.values())
        assert bool(ran) == (path != "dense")
    else:
        found, trace = static_step(own, call, unknown_counts(padded), trace=True)
        assert trace.static, (trace.error, trace.obstacles)
    assert differences(expected, found, 1e-12) == []


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_a_further_key_for_each_graph_equals_plain_pyg(option):
    model = Attending()
    model.gps = GPSConv(8, None, heads=2, norm=None, attn_kwargs={option: True})
    model = model.double()
    expected = plain_step(model, call, BATCH)
    sg.convert(model)
    found, _ = static_step(model, call, unknown_counts(BATCH))
    assert differences(expected, found, 1e-12) == []
    with pytest.raises(sg.NotStatic, match=r"gives? each graph a key.* Choose 'auto' or 'dense'"):
        static_step(sg.convert(model, attention="kernel"), call, unknown_counts(BATCH))


CUDA = AttentionSetting("cuda", "float32", 16)
# As of ogbg-molhiv, and a few graphs of thousands of nodes.
MOLECULES, LARGE = sg.Capacity(3288, 7078, 129, 222), sg.Capacity(20_001, 40_000, 6, 4_000)


@pytest.mark.parametrize(
    ("setting", "capacity", "path", "reason"),
    [
        (AttentionSetting(), MOLECULES, "kernel", "at most 729,714 pairs of nodes, 6,357,636"),
        (AttentionSetting(), LARGE, "dense", "graphs of similar size"),
        (CUDA, LARGE, "kernel", "auto"),
        (CUDA._replace(dropout=0.5), MOLECULES, "kernel", "auto"),
        (CUDA._replace(head=160), MOLECULES, "dense", "heads of 160 columns, more than 128"),
        (CUDA._replace(dtype="float64"), MOLECULES, "dense", "no CUDA kernel for float64"),
        (CUDA._replace(dropout=1.0), MOLECULES, "dense", "this layer all of them"),
    ],
)
def test_auto_takes_the_kernel_where_it_can_run(setting, capacity, path, reason):
    assert LARGE.max_graph_nodes > CPU_WIDEST
    found = attention_path(capacity, "auto", setting)
    assert found.name == path
    assert reason in found.reason


def test_a_file_of_an_older_version_keeps_its_capacity():
    """It may promise the size of the k-th largest graph, which no path needs any longer."""
    values = MOLECULES.to_dict() | {"ranks": [[0, 222], [8, 59]]}
    assert sg.Capacity.from_dict(values) == MOLECULES


def test_the_kernel_is_fitted_without_pairs(esol):
    """The probe finds a form without a ``G * M * M`` term where no such tensor is allocated."""

    class Model(Attending):
        def forward(self, data):
            return self.head(
                global_add_pool(self.gps(data.x[:, :8].float(), None, data.batch), data.batch)
            )[:, :1]

    memory = sg.probe(Model(), esol, loss=lambda out, data: (out - data.y).square())
    assert memory.fit.form == "linear"


class Forces(torch.nn.Module):
    """Forces of an energy with attention, as people write them."""

    def __init__(self):
        super().__init__()
        self.gps = GPSConv(4, None, heads=2, norm=None)

    def forward(self, pos, batch):
        pos = pos.clone().requires_grad_()
        h = self.gps(torch.cat([pos, pos[:, :1]], 1), None, batch)
        energy = global_add_pool(h.tanh().sum(1), batch)
        return torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]


def test_forces_through_attention_equal_plain_pyg():
    model = Forces().double()
    graphs = [
        Data(pos=torch.randn(n, 3).double(), edge_index=torch.empty(2, 0).long()) for n in (5, 2, 9)
    ]
    store = sg.GraphStore.from_pyg(graphs)
    runner = sg.StaticGraphRunner(copy.deepcopy(model), [sg.Capacity(20, 2, 5)], "eager")
    (batch,) = runner.loader(store)
    found = runner(batch)
    found[batch.node_mask].square().sum().backward()
    pos = torch.cat([graph.pos for graph in graphs])
    with sdpa_kernel(SDPBackend.MATH):  # the only one that torch differentiates twice
        expected = model(pos, torch.tensor([0] * 5 + [1] * 2 + [2] * 9))
    expected.square().sum().backward()
    torch.testing.assert_close(found[batch.node_mask], expected)
    for ours, plain in zip(runner.model.parameters(), model.parameters(), strict=True):
        if plain.grad is not None:
            torch.testing.assert_close(ours.grad, plain.grad)


def test_a_layer_that_drops_weights_trains_in_eager(esol):
    """The check of the padding holds draws equal on both sides: plain PyG drops places of a block,
    the kernel pairs of nodes."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gps = GPSConv(9, None, attn_kwargs={"dropout": 0.5})

        def forward(self, x, batch, batch_size):
            h = self.gps(x.float(), None, batch)
            return global_add_pool(h, batch, batch_size)[:, :1]

    model = Model()
    plan = sg.plan_buckets(esol, batch_size=32)
    runner = sgd_runner(model, plan, loss=lambda out, data: (out - data.y).square(), rate=1e-4)
    losses = [runner.step(batch) for batch in runner.loader(esol)]
    assert torch.stack(losses).isfinite().all()
    assert [row.path for row in runner.report().attention] == ["kernel"] * len(plan.capacities)
    assert_drawn_by_seed(runner, next(iter(runner.loader(esol))))
