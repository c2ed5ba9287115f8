"""The runner: padded equals unpadded PyG, compiled equals eager, and nothing compiles twice."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool, global_mean_pool

import staticgraph as sg

TRAIN = 640  # molecules: twenty batches of 32


class Molecules(nn.Module):
    """GINE or GPS over OGB's features, stock layers, pooling without a size."""

    def __init__(self, store, gps: bool, hidden: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.atoms = nn.ModuleList(nn.Embedding(c, hidden) for c in store.cardinality("x"))
        self.bonds = nn.ModuleList(nn.Embedding(c, hidden) for c in store.cardinality("edge_attr"))
        self.gps = gps
        self.convs = nn.ModuleList(self._layer(hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, 1)

    def _layer(self, hidden: int) -> nn.Module:
        mlp = nn.Sequential(
            nn.Linear(hidden, 2 * hidden),
            nn.BatchNorm1d(2 * hidden),
            nn.ReLU(),
            nn.Linear(2 * hidden, hidden),
        )
        conv = GINEConv(mlp)
        return GPSConv(hidden, conv, heads=4) if self.gps else conv

    def forward(self, x, edge_index, edge_attr, batch):
        h = sum(table(x[:, i]) for i, table in enumerate(self.atoms))
        e = sum(table(edge_attr[:, i]) for i, table in enumerate(self.bonds))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if self.gps:
                h = norm(conv(h, edge_index, batch, edge_attr=e))
            else:
                h = norm(conv(h, edge_index, e)).relu()
        return self.head(global_mean_pool(h, batch))


def bce(out, batch):
    return F.binary_cross_entropy_with_logits(out, batch.y.to(out.dtype), reduction="none")


def adam(model, lr=1e-3):
    return torch.optim.Adam(model.parameters(), lr=lr)


@pytest.fixture(scope="module")
def plan(hiv):
    return sg.plan_buckets(hiv, batch_size=32)


def loader_of(hiv, plan, **options):
    return sg.StaticLoader(hiv, plan, indices=hiv.splits["train"][:TRAIN], shuffle=True, **options)


def unpadded(store, batch) -> Batch:
    """The same graphs as PyG batches them, edges in their first order."""
    return Batch.from_data_list([store[i] for i in batch.graph_ids[batch.graph_mask].tolist()])


def pyg_loss(model, data):
    out = model(data.x, data.edge_index, data.edge_attr, data.batch)
    return out, F.binary_cross_entropy_with_logits(out, data.y.to(out.dtype))


def poisoned(batch: sg.StaticBatch, scale: float) -> sg.StaticBatch:
    """Garbage in every padding row: noise in float fields, another category in integer ones."""
    generator = torch.Generator().manual_seed(0)
    changed = {}
    for field in batch.layout.schema:
        value = batch[field.name].clone()
        padding = ~batch.tensors()[f"{field.level}_mask"]
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype) * scale
            value[padding] = noise[padding]
        else:
            largest = value.amax(dim=0, keepdim=True).expand_as(value)
            value[padding] = largest[padding]
        changed[field.name] = value
    return batch.replace(**changed)


def relative(found: torch.Tensor, expected: torch.Tensor, largest: float) -> float:
    return float((found - expected).abs().max()) / largest


@pytest.mark.parametrize("gps", [False, True], ids=["gine", "gps"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("real_known", [True, False], ids=["free", "fixed"])
def test_padded_equals_unpadded_in_float64(hiv, plan, gps, scale, real_known):
    """Outputs, loss, all gradients and BatchNorm's buffers, within 1e-10, whatever the padding.

    ``fixed`` hides the real counts, so that layers take the path of a compiled step.
    """
    torch.manual_seed(0)
    model = Molecules(hiv, gps).double()
    stock = copy.deepcopy(model)
    runner = sg.StaticGraphRunner(
        model, plan, loss=bce, optimizer=torch.optim.SGD(model.parameters(), lr=0.0)
    )
    for batch in list_of(loader_of(hiv, plan), 2):
        data = unpadded(hiv, batch)
        batch = poisoned(batch, scale) if scale else batch
        if not real_known:
            batch.real = None
        loss = runner.step(batch)
        stock.zero_grad()
        _, expected = pyg_loss(stock, data)
        expected.backward()
        assert abs(float(loss) - float(expected.detach())) < 1e-10
        grads = [p.grad for p in stock.parameters() if p.grad is not None]
        largest = max(float(g.abs().max()) for g in grads)
        for (name, ours), theirs in zip(model.named_parameters(), stock.parameters(), strict=True):
            if theirs.grad is not None:
                assert relative(ours.grad, theirs.grad, largest) < 1e-10, name
        for (name, ours), theirs in zip(model.named_buffers(), stock.buffers(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12), name
        stock.eval()
        with torch.no_grad():
            out, _ = pyg_loss(stock, data)
        stock.train()
        result = runner.eval_step(batch)
        assert relative(result.out[batch.graph_mask], out, float(out.abs().max())) < 1e-10


def list_of(loader, count):
    batches = []
    for batch in loader:
        batches.append(batch.clone())
        batches[-1].real = batch.real
        if len(batches) == count:
            break
    return batches


def test_a_bucket_does_not_matter(hiv):
    """The same graphs in a larger bucket: the same loss and gradients."""
    ids = hiv.splits["train"][:20]
    plan = sg.BucketPlan.of([(700, 1500, 33), (2000, 4500, 70)])
    torch.manual_seed(0)
    model = Molecules(hiv, gps=True).double()
    runner = sg.StaticGraphRunner(
        model, plan, loss=bce, optimizer=torch.optim.SGD(model.parameters(), lr=0.0)
    )
    grads = []
    for bucket, capacity in enumerate(plan.capacities):
        batch = sg.StaticBatch.of(hiv, ids, capacity, bucket)
        batch.real = None
        runner.step(batch)
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    largest = max(float(g.abs().max()) for g in grads[0])
    for one, other in zip(*grads, strict=True):
        assert relative(one, other, largest) < 1e-10


@pytest.mark.parametrize(
    "gps", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["gine", "gps"]
)
def test_fifty_steps_in_float32_follow_pyg(hiv, plan, gps):
    """The trajectory departs from the float64 one no further than PyG's own does in float32.

    How far that is depends on luck: a ReLU that a rounding error flips moves the loss by 1e-5. So
    PyG runs four times over the same batches, graphs and edges in another order each time, which
    rounds differently and changes nothing else; twice the largest departure is the tolerance.
    """
    torch.manual_seed(0)
    model = Molecules(hiv, gps)
    exact = Stock(copy.deepcopy(model).double(), seed=None)
    stocks = [Stock(copy.deepcopy(model), seed) for seed in range(4)]
    runner = sg.StaticGraphRunner(model, plan, loss=bce, optimizer=adam(model))
    ours, truth, departures = [], [], []
    loader = loader_of(hiv, plan)
    while len(ours) < 50:
        for batch in loader:
            data = unpadded(hiv, batch)
            ours.append(float(runner.step(batch)))
            truth.append(exact.step(data))
            departures.append([abs(stock.step(data) - truth[-1]) for stock in stocks])
    error = np.abs(np.subtract(ours, truth))[:50]
    assert error.max() <= 2 * np.max(departures[:50])
    assert np.mean(truth[-10:]) < np.mean(truth[:10]), "the reference does not learn"


class Stock:
    """Plain PyG training, with the graphs of every batch, and the edges of every graph, in an order
    of its own: the same sums, rounded differently."""

    def __init__(self, model: nn.Module, seed: int | None) -> None:
        self.model = model
        self.optimizer = adam(model)
        self.order = None if seed is None else torch.Generator().manual_seed(seed)

    def step(self, data: Batch) -> float:
        if self.order is not None:
            graphs = data.to_data_list()
            mixed = torch.randperm(len(graphs), generator=self.order).tolist()
            data = Batch.from_data_list([self._mixed(graphs[i]) for i in mixed])
        self.optimizer.zero_grad()
        _, loss = pyg_loss(self.model, data)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def _mixed(self, graph: Data) -> Data:
        edges = torch.randperm(graph.num_edges, generator=self.order)
        return Data(
            x=graph.x,
            edge_index=graph.edge_index[:, edges],
            edge_attr=graph.edge_attr[edges],
            y=graph.y,
        )


@pytest.fixture(scope="module")
def trained(hiv):
    """A model that Inductor compiled for two buckets, trained for three epochs: made once.

    Last, how often Dynamo broke a graph meanwhile: its counters are the process's, so they are
    cleared before and read here.
    """
    counters.clear()
    plan = sg.BucketPlan.of([(830, 1800, 33), (1200, 2600, 34)], batch_size=32)
    torch.manual_seed(0)
    model = Molecules(hiv, gps=False, hidden=8, layers=1)
    before = copy.deepcopy(model.state_dict())
    runner = sg.StaticGraphRunner(
        model, plan, mode="default", loss=bce, optimizer=adam(model)
    ).warmup(hiv, progress=False)
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
    """One compiled graph a bucket and phase, none after warm-up."""

    def test_one_graph_a_key_and_none_later(self, trained):
        runner, _, _, graph_breaks = trained
        for bucket in runner.report().buckets:
            assert (bucket.compiles, bucket.late_compiles, bucket.graph_breaks) == (2, 0, 0)
        assert graph_breaks == 0
        assert sum(b.batches for b in runner.report().buckets) >= 3 * TRAIN // 32

    def test_warmup_changes_nothing(self, trained):
        _, before, after, _ = trained
        for name, value in before.items():
            assert torch.equal(value, after[name]), name

    def test_compiled_equals_eager(self, trained, hiv):
        runner, *_ = trained
        twin = copy.deepcopy(runner.model)
        eager = sg.StaticGraphRunner(twin, runner.plan, mode="eager", loss=bce)
        batch = sg.StaticBatch.of(hiv, range(30), runner.plan.capacities[0])
        one, other = runner.eval_step(batch), eager.eval_step(batch)
        assert torch.allclose(one.out[batch.graph_mask], other.out[batch.graph_mask], atol=1e-5)
        assert abs(float(one.loss - other.loss)) < 1e-6

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


class Reader(nn.Module):
    """Takes the number of graphs from the data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(9, 1)

    def forward(self, x, batch):
        graphs = int((batch + 0).max()) + 1  # of an index of its own, which nobody knows
        return torch.zeros(graphs, 1).index_add(0, batch, self.linear(x.float()))


def test_a_host_read_is_named_with_its_line(hiv, plan):
    runner = sg.StaticGraphRunner(Reader(), plan, mode="default")
    with pytest.raises(sg.NotStatic, match=r"item at .*test_runner\.py:\d+: graphs = int\("):
        runner.warmup(progress=False)


class Linear(nn.Module):
    """The smallest model over graphs; called by parameter names."""

    def __init__(self, level: str = "graph") -> None:
        super().__init__()
        self.level = level
        self.linear = nn.Linear(9, 2)

    def forward(self, x, edge_index, batch=None, batch_size=None):
        h = self.linear(x.float())
        if self.level == "node":
            return h
        if self.level == "edge":
            return h[edge_index[0]] - 2 * h[edge_index[1]]
        return global_add_pool(h, batch, batch_size)


class WholeBatch(Linear):
    """The same, given the batch."""

    def forward(self, data):
        return super().forward(data.x, data.edge_index, data.batch, data.num_graphs)


def test_models_are_called_as_they_are_written(hiv, plan):
    torch.manual_seed(0)
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

    with pytest.raises(TypeError, match=r"Nameless\.forward names no parameter.*pass forward="):
        sg.StaticGraphRunner(Nameless(), plan)


@pytest.mark.parametrize("level", ["graph", "node", "edge"])
def test_predict_gives_back_the_input_order(hiv, plan, level):
    """Per graph, node or edge, against the model on each graph alone, edges as they were given."""
    torch.manual_seed(0)
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


def test_predict_keeps_training_flags(hiv, plan):
    model = Molecules(hiv, gps=False)
    model.norms[0].eval()  # a frozen layer
    runner = sg.StaticGraphRunner(model, plan)
    runner.predict([hiv[0]])
    assert model.training
    assert not model.norms[0].training
    assert model.norms[1].training


def test_a_scalar_loss_is_refused(hiv, plan):
    model = Linear()
    runner = sg.StaticGraphRunner(
        model, plan, loss=lambda out, batch: out.mean(), optimizer=adam(model)
    )
    batch = sg.StaticBatch.of(hiv, range(30), plan.capacities[0])
    with pytest.raises(ValueError, match="reduction='none'"):
        runner.step(batch)


@pytest.mark.parametrize("level", ["graph", "node", "edge"])
def test_the_loss_is_the_mean_over_real_rows(hiv, plan, level):
    torch.manual_seed(0)
    model = Linear(level)
    batch = sg.StaticBatch.of(hiv, range(30), plan.capacities[0])
    runner = sg.StaticGraphRunner(model, plan, loss=lambda out, _: out.square())
    data = Batch.from_data_list([hiv[i] for i in range(30)])
    expected = model(data.x, data.edge_index, data.batch, 30).square().mean()
    # Sums of at most a few thousand float32 squares: eps times their number bounds the error.
    found = runner.eval_step(batch).loss
    assert torch.allclose(found, expected, rtol=2000 * torch.finfo(torch.float32).eps)


def labelled(graphs, missing):
    """Graphs with two targets of which some are NaN."""
    rng = np.random.default_rng(0)
    out = []
    for graph in graphs:
        y = torch.from_numpy(rng.normal(size=(1, 2))).float()
        y[torch.from_numpy(rng.random((1, 2)) < missing)] = float("nan")
        out.append(Data(x=graph.x, edge_index=graph.edge_index, y=y))
    return out


def test_missing_targets_take_no_part(hiv):
    store = sg.GraphStore.from_pyg(labelled([hiv[i] for i in range(30)], 0.4))
    assert store.schema["y"].has_nan
    torch.manual_seed(0)
    model = Linear()
    runner = sg.StaticGraphRunner(
        model,
        [(1000, 2500, 33)],
        loss=lambda out, batch: F.mse_loss(out, batch.y, reduction="none"),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
    )
    batch = sg.StaticBatch.of(store, range(30), (1000, 2500, 33))
    loss = runner.step(batch)
    found = model.linear.weight.grad.clone()
    data = Batch.from_data_list(list(store))
    out = model(data.x, data.edge_index, data.batch, 30)
    told = ~data.y.isnan()
    expected = F.mse_loss(out[told], data.y[told])
    (grad,) = torch.autograd.grad(expected, [model.linear.weight])
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert torch.allclose(found, grad, rtol=1e-4, atol=1e-4 * float(grad.abs().max()))
    assert bool(batch.y.isnan().any()), "the batch keeps its NaN for metrics"


def test_a_loss_summed_over_missing_targets_is_refused(hiv):
    store = sg.GraphStore.from_pyg(labelled([hiv[i] for i in range(30)], 0.4))
    runner = sg.StaticGraphRunner(
        Linear(), [(1000, 2500, 33)], loss=lambda out, batch: (out - batch.y).square().sum(1)
    )
    with pytest.raises(ValueError, match="must have the shape of y"):
        runner.eval_step(sg.StaticBatch.of(store, range(30), (1000, 2500, 33)))


def test_graph_modes_on_a_cpu(plan):
    for mode in ("reduce-overhead", "max-autotune"):
        with pytest.raises(ValueError, match="would run it silently without"):
            sg.StaticGraphRunner(Linear(), plan, mode=mode)
        assert (
            sg.StaticGraphRunner(
                Linear(), plan, mode=mode, recording=sg.Recording(allow_cpu=True)
            ).mode.name
            == mode
        )
    with pytest.raises(ValueError, match="choose one of auto, eager"):
        sg.StaticGraphRunner(Linear(), plan, mode="fast")
    auto = sg.StaticGraphRunner(Linear(), plan)
    assert auto.mode.name == "eager"
    assert "auto: eager on cpu" in str(auto.report())


def test_a_batch_of_another_plan_is_refused(hiv, plan):
    runner = sg.StaticGraphRunner(Linear(), plan)
    with pytest.raises(ValueError, match="give the loader and the runner the same plan"):
        runner(sg.StaticBatch.of(hiv, range(10), (1000, 2000, 50)))


def test_plain_capacities_need_an_example_to_warm_up(hiv):
    runner = sg.StaticGraphRunner(Linear(), [(1000, 2500, 33)], mode="default")
    with pytest.raises(ValueError, match="pass warmup"):
        runner.warmup()


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
    assert sg.Report.load(tmp_path / "report.json") == report
    assert "fallbacks: none" in str(report)


@pytest.mark.slow
def test_a_model_that_writes_on_its_batch_trains_twice_on_one_batch(esol):
    """As GraphGym's layers do: the second step must not see what the first one set."""

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
    for mode in ("eager", "default"):
        torch.manual_seed(0)
        model = Writes()
        runner = sg.StaticGraphRunner(
            model,
            [(100, 230, 6)],
            mode=mode,
            loss=lambda out, data: out - data.y + 0 * data.h[:, :1],
            optimizer=torch.optim.SGD(model.parameters(), 1e-6),
        )
        outs[mode] = [float(runner.step(batch)) for _ in range(3)]
    assert outs["eager"] == pytest.approx(outs["default"], rel=1e-5)
    assert outs["eager"][0] > outs["eager"][1] > outs["eager"][2]


# ---------------------------------------------------------------- what a newcomer gets wrong


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loss": torch.nn.MSELoss()}, r"loss=MSELoss\(\) takes a target.*reduction='none'"),
        ({"model": lambda batch: batch}, "the model is a function, not a torch.nn.Module"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS calls the model several times a step"),
    ],
)
def test_what_cannot_run_is_refused_when_the_runner_is_made(plan, given, says):
    model = given.get("model", Linear())
    optimizer = given.get("optimizer")
    with pytest.raises(TypeError, match=says):
        sg.StaticGraphRunner(
            model,
            plan,
            loss=given.get("loss"),
            optimizer=optimizer and optimizer(model.parameters()),
        )


def test_what_a_step_cannot_take_is_named(hiv, plan):
    batch = sg.StaticBatch.of(hiv, range(30), plan.capacities[0])
    runner = sg.StaticGraphRunner(Linear(), plan)
    with pytest.raises(TypeError, match=r"a step takes a StaticBatch.*not a DataBatch"):
        runner(Batch.from_data_list([hiv[0], hiv[1]]))
    with pytest.raises(
        ValueError, match=r"the batch is on cpu, the model on meta: pass StaticLoad"
    ):
        sg.StaticGraphRunner(Linear().to("meta"), plan)(batch)


def losing(loss, plan, mode="eager"):
    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return sg.StaticGraphRunner(model, plan, mode, loss=loss, optimizer=optimizer)


def test_a_loss_that_is_none_a_row_is_named(hiv, plan):
    batch = sg.StaticBatch.of(hiv, range(30), plan.capacities[0])
    with pytest.raises(TypeError, match="the loss gives a NoneType: return a tensor"):
        losing(lambda out, batch: None, plan).step(batch)
    with pytest.raises(sg.NotStatic, match=r"\nthe model or the loss raises ValueError\(.the loss"):
        losing(lambda out, batch: out.mean(), plan, "default").step(batch)

    class One(Linear):
        def forward(self, x, edge_index, batch, num_graphs):
            return super().forward(x, edge_index, batch, num_graphs)[:, :1]

    model = One()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flat = sg.StaticGraphRunner(
        model, plan, "eager", loss=lambda o, b: o - b.y.view(-1), optimizer=optimizer
    )
    with pytest.raises(ValueError, match=r"shape \[33, 1\] has the shape \[33, 33\].*squeeze"):
        flat.step(batch)


def test_checkpointing_in_eager_runs_its_layers_over_real_rows(hiv, plan):
    """What backward runs again sees the batch as the forward did: a BatchNorm, no padding."""

    class Again(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 1)

        def forward(self, data):
            h = data.x.double()
            h = torch.utils.checkpoint.checkpoint(self.norm, h, use_reentrant=False)
            return self.head(global_add_pool(h, data.batch))

    torch.manual_seed(0)
    model = Again().double()
    plain = copy.deepcopy(model)
    data = Batch.from_data_list([hiv[i] for i in range(30)])
    plain(data).square().mean().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    runner = sg.StaticGraphRunner(
        model, plan, "eager", loss=lambda out, batch: out.square(), optimizer=optimizer
    )
    runner.step(sg.StaticBatch.of(hiv, range(30), plan.capacities[0]))
    largest = max(float(p.grad.abs().max()) for p in plain.parameters())
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert (found.grad - expected.grad).abs().max() <= 1e-9 * largest
    for found, expected in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(found.double(), expected.double(), rtol=1e-9, atol=1e-12)
