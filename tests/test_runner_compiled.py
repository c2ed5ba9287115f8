"""Compiled steps: one graph per key, none after the warm-up, and the results of eager."""

from __future__ import annotations

import copy
import gc
import sys

import pytest
import torch
from support.alike import same
from support.graphs import double_graphs
from support.linear_net import Linear
from support.molecule_steps import TRAIN, Molecules, adam, bce, loader_of
from support.places import AsTraced, mode_of
from support.runners import sgd_runner
from torch import nn
from torch._dynamo.utils import counters
from torch_geometric.nn import GINConv, global_add_pool

import staticgraph as sg
from staticgraph.rewrites import rewrite as rewrite_function

rewrite = sys.modules[rewrite_function.__module__]


@pytest.fixture(scope="module")
def plan(hiv):
    return sg.plan_buckets(hiv, batch_size=32)


@pytest.fixture(scope="class")
def traced_alone():
    """torch.compile runs the traced graph as it is: Inductor is not under test here, and compiling
    the C++ of ten graphs takes half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_TorchCompileInductorWrapper", AsTraced)
        yield


@pytest.fixture(scope="class")
def trained(hiv, traced_alone):
    """A model compiled for two buckets and trained for three epochs, made only once.

    The last value is the number of graph breaks: Dynamo's counters are per process, so they are
    cleared before and read here.
    """
    counters.clear()
    plan = sg.BucketPlan.of([(830, 1800, 33), (1200, 2600, 34)], batch_size=32)
    torch.manual_seed(0)
    model = Molecules(hiv, gps=False, hidden=8, layers=1)
    before = copy.deepcopy(model.state_dict())
    runner = sg.StaticGraphRunner(
        model, plan, mode="default", loss=bce, optimizer=adam(model)
    ).warmup(hiv)
    after = copy.deepcopy(model.state_dict())
    loader = loader_of(hiv, plan)
    for _ in range(3):
        for batch in loader:
            runner.step(batch)
    small = sg.StaticLoader(hiv, plan, indices=hiv.splits["val"][:90], exact=False)
    for batch in small:
        runner.eval_step(batch)
    return runner, before, after, sum(counters["graph_break"].values())


@pytest.mark.slow
class TestCompiled:
    """One compiled graph per bucket and phase, none after warm-up."""

    def test_one_graph_a_key_and_none_later(self, trained):
        runner, _, _, graph_breaks = trained
        for bucket in runner.report().buckets:
            assert (bucket.compiles, bucket.late_compiles, bucket.graph_breaks) == (2, 0, 0)
        assert graph_breaks == 0
        assert sum(b.batches for b in runner.report().buckets) >= 3 * TRAIN // 32

    def test_warmup_changes_nothing(self, trained):
        _, before, after, _ = trained
        assert same(before, after)

    def test_garbage_is_collected_as_before_after_a_warm_up(self, hiv, plan):
        """Not while a model is traced: a trace makes millions of objects."""
        model, collections = Molecules(hiv, gps=False, hidden=8, layers=1), []
        runner = sg.StaticGraphRunner(model, plan, "fused", loss=bce, optimizer=adam(model))
        thresholds = gc.get_threshold()
        gc.callbacks.append(lambda when, about: collections.append(about["generation"]))
        runner.warmup(hiv, progress=False)
        gc.callbacks.pop()
        assert gc.get_threshold() == thresholds
        assert len(collections) < 2 * 10, len(collections)

    def test_a_phase_not_warmed_up_is_said(self, trained, hiv):
        runner, *_ = trained
        batch = sg.StaticBatch.of(hiv, range(30), runner.plan.capacities[0])
        runner.model.eval()
        try:
            with pytest.warns(UserWarning, match="bucket 0 forward eval was not warmed up"):
                runner(batch)
        finally:
            runner.model.train()
        assert runner.report().buckets[0].late_compiles == 1

    def test_a_changed_model_names_the_guard(self, trained, hiv):
        runner, *_ = trained
        batch = sg.StaticBatch.of(hiv, range(30), runner.plan.capacities[0])
        norm = runner.model.norms[0]
        norm.eps, kept = 2e-5, norm.eps
        try:
            with pytest.raises(sg.NotStatic, match=r"(?s)compiled again.*eps"):
                runner.eval_step(batch)
        finally:
            norm.eps = kept
        runner.eval_step(batch)


@pytest.mark.slow
def test_compiled_equals_eager(hiv):
    """With Inductor's own C++, and running statistics that a training step changed."""
    model = Molecules(hiv, gps=False, hidden=8, layers=1)
    batch = sg.StaticBatch.of(hiv, range(30), (830, 1800, 33))
    eager = sg.StaticGraphRunner(model, [batch.capacity], loss=bce, optimizer=adam(model))
    eager.step(batch)
    compiled = sg.StaticGraphRunner(
        copy.deepcopy(model), [batch.capacity], mode="default", loss=bce
    ).warmup(hiv, phases=["eval"])
    one, other = compiled.eval_step(batch), eager.eval_step(batch)
    assert torch.allclose(one.out[batch.graph_mask], other.out[batch.graph_mask], atol=1e-5)
    assert abs(float(one.loss - other.loss)) < 1e-6


class Reader(nn.Module):
    """Reads the number of graphs from the data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(9, 1)

    def forward(self, x, batch):
        graphs = int((batch + 0).max()) + 1  # of a new tensor that the library does not know
        return torch.zeros(graphs, 1).index_add(0, batch, self.linear(x.float()))


def test_a_host_read_is_named_with_its_line(hiv, plan):
    runner = sg.StaticGraphRunner(Reader(), plan, mode="default")
    with pytest.raises(
        sg.NotStatic, match=r"item at .*test_runner_compiled\.py:\d+: graphs = int\("
    ):
        runner.warmup()


class Fails(Linear):
    """Fails in torch's own words, in one of several ways."""

    def __init__(self, way) -> None:
        super().__init__()
        self.way = way

    def forward(self, data):
        out = super().forward(data.x, data.edge_index, data.batch, data.num_graphs)
        return out + self.way(data, out)


WAYS = [
    (lambda data, out: torch.autograd.grad(out.sum(), data.edge_attr)[0].sum(), "differentiable="),
    (lambda data, out: data.x.float().view(-1, 7, 3).sum(), r"\(n \* graphs, edges, graphs\)"),
    (lambda data, out: torch.relu(data.pos).sum(), "are None where the data have none"),
]


@pytest.mark.parametrize("mode", ["eager", "fused"])
@pytest.mark.parametrize(("way", "advice"), WAYS)
def test_an_error_in_torchs_words_says_what_to_do(hiv, plan, mode, way, advice):
    model = Fails(way)
    runner = sg.StaticGraphRunner(model, plan, mode)
    with pytest.raises(Exception, match=advice) as caught:
        runner(next(iter(loader_of(hiv, plan))))
    assert "make fake tensor call" not in str(caught.value)


def test_a_model_that_writes_on_its_batch_trains_twice_on_one_batch(esol, monkeypatch):
    """As GraphGym's layers do: the second step must not see what the first one assigned."""

    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(9, 9)

        def forward(self, data):
            data.x = self.lin(data.x.float())
            data.h = global_add_pool(data.x, data.batch)
            return data.h.sum(1, keepdim=True)

    outs = {}
    batch = sg.StaticBatch.of(esol, range(4), (100, 230, 6))
    for mode in ("eager", "traced"):
        torch.manual_seed(0)
        model = Writes()
        runner = sgd_runner(
            model,
            [(100, 230, 6)],
            mode_of(mode, monkeypatch),
            loss=lambda out, data: out - data.y + 0 * data.h[:, :1],
            rate=1e-6,
        )
        outs[mode] = [float(runner.step(batch)) for _ in range(3)]
    assert outs["eager"] == pytest.approx(outs["traced"], rel=1e-5)
    assert outs["eager"][0] > outs["eager"][1] > outs["eager"][2]


class Encoder(nn.Module):
    """InfoGraph's: the sums over each graph of every layer, side by side."""

    def __init__(self):
        super().__init__()
        mlps = [nn.Sequential(nn.Linear(k, 8), nn.ReLU(), nn.Linear(8, 8)) for k in (4, 8)]
        self.convs = nn.ModuleList(GINConv(mlp) for mlp in mlps)
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in mlps)

    def forward(self, data):
        rows = [data.x]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            rows.append(norm(conv(rows[-1], data.edge_index).relu()))
        return torch.cat([global_add_pool(h, data.batch) for h in rows[1:]], 1)


@pytest.mark.slow
def test_inductor_leaves_no_row_out_of_a_sum():
    store = sg.GraphStore.from_pyg(double_graphs(range(5, 15)))
    batch = sg.StaticBatch.of(store, range(10), (146, 213, 11))
    losses = []
    for mode in ("default", "eager"):
        torch.manual_seed(0)
        model = Encoder().double()
        runner = sgd_runner(
            model, [batch.capacity], mode, loss=lambda out, batch: out.square().mean(-1)
        )
        losses.append(runner.step(batch).detach())
    torch.testing.assert_close(*losses)
