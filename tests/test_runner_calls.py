"""How a runner is called: as models are written, with new graphs, in each mode, and incorrectly."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support.linear_net import Linear
from support.molecule_steps import TRAIN, adam, loader_of
from support.runners import made_runner
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.runner.report import Report


@pytest.fixture(scope="module")
def plan(hiv):
    return sg.plan_buckets(hiv, batch_size=32)


class WholeBatch(Linear):
    """The same model, called with the batch."""

    def forward(self, data):
        return super().forward(data.x, data.edge_index, data.batch, data.num_graphs)


def test_models_are_called_as_they_are_written(hiv, plan):
    by_name, whole = Linear(), WholeBatch()
    whole.load_state_dict(by_name.state_dict())
    batch = sg.StaticBatch.of(hiv, range(30), plan.capacities[0])
    outs = [
        sg.StaticGraphRunner(by_name, plan)(batch),
        sg.StaticGraphRunner(whole, plan)(batch),
        sg.StaticGraphRunner(whole, plan, forward=lambda model, data: model(data))(batch),
    ]
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    assert outs[0].shape == (33, 2)
    assert outs[0].requires_grad

    class Needs(Linear):
        def forward(self, x, pos):
            return x

    with pytest.raises(TypeError, match=r"Needs\.forward needs 'pos'.*it has edge_index"):
        sg.StaticGraphRunner(Needs(), plan)(batch)

    class Sole(WholeBatch):
        def forward(self, inputs, scale=1.0):
            return super().forward(inputs) * scale

    sole = Sole()
    sole.load_state_dict(by_name.state_dict())
    assert torch.equal(sg.StaticGraphRunner(sole, plan)(batch), outs[0])

    class Nameless(Linear):
        def forward(self, **fields):
            return fields["x"]

    with pytest.raises(TypeError, match=r"^DataParallel wraps a model.*, model\.module; "):
        sg.StaticGraphRunner(torch.nn.DataParallel(Linear()), plan)
    with pytest.raises(TypeError, match=r"Nameless\.forward names no parameter.*pass forward="):
        sg.StaticGraphRunner(Nameless(), plan)


@pytest.mark.parametrize("level", ["graph", "node", "edge"])
def test_predict_gives_back_the_input_order(hiv, plan, level):
    """Per graph, node or edge, compared with the model on each graph alone, with edges as given."""
    model = Linear(level)
    rng = np.random.default_rng(0)
    graphs = []
    for i in rng.permutation(len(hiv))[:70].tolist():
        graph = hiv[i]
        mixed = torch.from_numpy(rng.permutation(graph.num_edges))
        graph.edge_index, graph.edge_attr = graph.edge_index[:, mixed], graph.edge_attr[mixed]
        graphs.append(graph)
    found = sg.StaticGraphRunner(model, plan).predict(graphs)
    assert len(found) == len(graphs)
    for piece, graph in zip(found, graphs, strict=True):
        zeros = torch.zeros(graph.num_nodes, dtype=torch.int64)
        expected = model(graph.x, graph.edge_index, zeros, 1)
        expected = expected[0] if level == "graph" else expected
        assert torch.allclose(piece, expected, rtol=1e-4, atol=1e-4)


def test_predict_without_labels_and_of_nothing(hiv, plan):
    runner = sg.StaticGraphRunner(Linear(), plan)
    assert len(runner.predict([])) == 0
    bare = [Data(x=g.x, edge_index=g.edge_index, edge_attr=g.edge_attr) for g in (hiv[0], hiv[1])]
    assert runner.predict(bare).shape == (2, 2)
    del bare[1].x
    bare[1].num_nodes = hiv[1].num_nodes
    with pytest.raises(sg.BadGraph, match="graph 1 has no 'x', which the plan expects"):
        runner.predict(bare)


class Asks(Linear):
    """Takes what PyG's batch has, by attributes and by class, as it may be or not."""

    def forward(self, data):
        x = data.x if data.pos is None else data.pos
        graph = data.batch if isinstance(data, (str, Batch)) and isinstance(data, Data) else None
        del data.edge_attr
        x = x if copy.deepcopy(data).edge_attr is None else 0 * x
        return super().forward(x, data.edge_index, graph, data.num_graphs)


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_a_model_that_asks_for_a_batch_of_pyg_takes_the_same_branch(hiv, plan, mode):
    if mode == "fused" and torch.__version__ < "2.12":
        pytest.skip("torch 2.11 follows no copy.deepcopy")
    model = Asks()
    graphs = hiv[:20]
    expected = model.eval()(Batch.from_data_list(graphs))
    out = sg.StaticGraphRunner(model, plan, mode=mode).predict(graphs)
    torch.testing.assert_close(out, expected.detach())


class Optional(Linear):
    def forward(self, x, edge_index, edge_attr=None, batch=None, batch_size=None):
        out = super().forward(x, edge_index, batch, batch_size)
        return out if edge_attr is None else out + 1


def test_optional_arguments_from_fields_are_named_once(hiv, plan, recwarn):
    batch = sg.StaticBatch.of(hiv, range(30), plan.capacities[0])
    runner = sg.StaticGraphRunner(model := Optional(), plan)
    runner(batch)
    runner.eval_step(batch)
    (text,) = [str(w.message) for w in recwarn if "optional" in str(w.message)]
    assert "Optional.forward gets its optional edge_attr from the fields" in text
    assert "model(batch.x, batch.edge_index)" in text
    assert runner.report().optional == ("edge_attr",)
    assert "optional arguments from fields: edge_attr" in str(runner.report())
    plain = sg.StaticGraphRunner(
        model, plan, forward=lambda m, b: m(b.x, b.edge_index, None, b.batch)
    )
    assert plain.report().optional == ()


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_dropout_that_was_put_back_into_training_is_sampled(hiv, plan, mode):
    model = torch.nn.Sequential(Linear(), torch.nn.Dropout(0.5))

    def call(model, batch):
        return model[1](model[0](batch.x, batch.edge_index, batch.batch, batch.num_graphs))

    runner = sg.StaticGraphRunner(model, plan, mode=mode, forward=call)
    graphs = hiv[:20]
    plain = runner.predict(graphs)
    assert torch.equal(runner.predict(graphs), plain)
    model.eval()
    model[1].train()
    with pytest.warns(UserWarning, match=r"layers in it are in training mode \(Dropout\)"):
        draws = torch.stack([runner.predict(graphs) for _ in range(8)])
    assert model[1].training
    assert ((draws == 0) | torch.isclose(draws, 2 * plain)).all()
    assert ((draws == 0).any(0) & (draws != 0).any(0)).any()
    model.eval()
    torch.testing.assert_close(runner.predict(graphs), plain)


def test_graph_modes_on_a_cpu(plan):
    for mode in ("reduce-overhead", "max-autotune"):
        with pytest.raises(ValueError, match="would run it silently without"):
            sg.StaticGraphRunner(Linear(), plan, mode=mode)
        assert made_runner(Linear(), plan, mode=mode, allow_cpu=True).mode.name == mode
    with pytest.raises(ValueError, match="choose one of auto, eager"):
        sg.StaticGraphRunner(Linear(), plan, mode="fast")
    auto = sg.StaticGraphRunner(Linear(), plan)
    assert auto.mode.name == "eager"
    assert "auto: eager on cpu, until warmup() has measured" in str(auto.report())


def test_a_batch_of_another_plan_is_refused(hiv, plan):
    runner = sg.StaticGraphRunner(Linear(), plan)
    with pytest.raises(ValueError, match=r"give the loader and the runner the same plan.*padder"):
        runner(sg.StaticBatch.of(hiv, range(10), (1000, 2000, 50)))


def test_the_report_counts_what_ran(hiv, plan, tmp_path):
    model = Linear()
    runner = sg.StaticGraphRunner(
        model, plan, loss=lambda out, _: out.square(), optimizer=adam(model)
    )
    loader = loader_of(hiv, plan)
    for batch in loader:
        runner.step(batch)
    report = runner.report()
    (bucket,) = report.buckets
    used = hiv.sizes[hiv.splits["train"][:TRAIN]].sum(0)
    assert bucket.batches == TRAIN // 32
    assert bucket.real_graphs == TRAIN
    assert bucket.node_efficiency == pytest.approx(used[0] / (20 * bucket.nodes))
    assert bucket.edge_efficiency == pytest.approx(used[1] / (20 * bucket.edges))
    assert bucket.step_ms > 0
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report
    assert "fallbacks: none" in str(report)


def test_what_a_step_cannot_take_is_named(hiv, plan):
    batch = sg.StaticBatch.of(hiv, range(30), plan.capacities[0])
    runner = sg.StaticGraphRunner(Linear(), plan)
    with pytest.raises(TypeError, match=r"a step takes PyG's Batch.*not a dict"):
        runner({"x": hiv[0].x})
    with pytest.raises(
        ValueError, match=r"the batch is on cpu, the model on meta: pass StaticLoad"
    ):
        sg.StaticGraphRunner(Linear().to("meta"), plan)(batch)


@pytest.mark.parametrize("mode", ["fused", "cuda-graph"])
def test_fields_in_another_order_are_taken_by_name_and_of_another_shape_refused(mode):
    """A second data set, whose batches have as many bytes as those of the first."""

    def stored(**widths: int) -> sg.GraphStore:
        draw = torch.Generator().manual_seed(0)
        fields = {"b": torch.randn(3, 2, generator=draw), "a": torch.randn(3, 2, generator=draw)}
        graph = Data(edge_index=torch.zeros(2, 0).long(), num_nodes=3)
        for name, width in widths.items():
            graph[name] = fields[name][:, :1].expand(3, width) if width != 2 else fields[name]
        return sg.GraphStore.from_pyg([graph] * 2)

    first = stored(a=2, b=2)
    plan = sg.plan_buckets(first, 2)
    forward = lambda net, batch: net(batch.a - 2 * batch.b)  # noqa: E731
    runner = made_runner(torch.nn.Linear(2, 1), plan, mode, forward=forward).warmup(first)
    batches = [
        sg.StaticBatch.of(store, [0, 1], plan.capacities[0])
        for store in (first, stored(b=2, a=2), stored(a=3, b=1))
    ]
    outs = [runner.eval_step(batch).out[:6] for batch in batches[:2]]
    assert torch.equal(*outs)
    with pytest.raises(sg.NotStatic, match="differ in a, b"):
        runner.eval_step(batches[2])


class Copying(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(9, 1)

    def forward(self, data):
        data = data.clone()
        data.x = self.lin(data.x.float())
        return global_add_pool(data.x, data.batch, data.num_graphs)


def test_a_fused_forward_may_copy_a_batch_that_nothing_has_measured(esol):
    """The size of its slot is first asked for in the trace."""
    capacity, model = (210, 430, 9), Copying()
    runner = made_runner(model, [capacity], "fused", check_padding=False)
    batch = sg.StaticBatch.of(esol, [3, 1, 4], capacity)
    graphs = Batch.from_data_list(esol[[3, 1, 4]])
    torch.testing.assert_close(runner(batch)[batch.graph_mask], model(graphs))
