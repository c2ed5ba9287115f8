"""Whether a tensor has rows of the batch follows from its origin, never from its size alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.alike import assert_same_gradients, assert_same_state
from support.graphs import drawn_graphs
from support.places import mode_of
from support.runners import made_runner, sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.errors import NotStatic

GRAPHS = 33  # physical graphs, of which 20 are real
CAPACITY = (150, 310, GRAPHS)


@pytest.fixture(scope="module")
def store():
    sizes = [n for n in range(2, 7) for _ in range(4)]
    return sg.GraphStore.from_pyg(
        drawn_graphs(sizes, dtype=torch.float32, x=("node", 3), y=("graph", 4))
    )


@pytest.fixture
def batch(store):
    return sg.StaticBatch.of(store, range(20), CAPACITY)


def mse(out, batch):
    out = out[0] if isinstance(out, tuple) else out["y"] if isinstance(out, dict) else out
    return F.mse_loss(out, batch.y, reduction="none")


class Several(nn.Module):
    """One row per graph and one per node, plus tensors of its own with as many rows as a bucket."""

    def __init__(self, kind: type = dict) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 4)
        self.table = nn.Parameter(torch.randn(GRAPHS, 4))
        self.wide = nn.Linear(3, GRAPHS)
        self.kind = kind

    def forward(self, x, batch):
        h, wide = self.lin(x), self.wide(x)
        out = {
            "y": global_add_pool(h, batch),
            "nodes": h + 1,
            "table": self.table * 1.0,
            "products": wide.t() @ wide,
            "constant": torch.ones(GRAPHS, GRAPHS, device=x.device),
            "scalar": h.sum(),
        }
        return out if self.kind is dict else tuple(out.values())


@pytest.mark.parametrize("kind", [dict, tuple])
@pytest.mark.parametrize("mode", ["eager", "traced", "cuda-graph"])
def test_outputs_of_the_models_own_are_left_alone(store, batch, kind, mode, monkeypatch):
    mode = mode_of(mode, monkeypatch)
    model = Several(kind)
    # The products and the sum include padding, as a model's own tensors may.
    runner = made_runner(model, [CAPACITY], mode, loss=mse, check_padding=False)
    runner.warmup(store, phases=("eval",))
    out = runner.eval_step(batch).out
    out = out if kind is dict else dict(zip(Several()(batch.x, batch.batch), out, strict=True))
    wide = model.wide(batch.x)
    assert torch.equal(out["table"], model.table)
    assert torch.allclose(out["products"], wide.t() @ wide, rtol=1e-4)
    assert bool((out["constant"] == 1).all())
    assert not out["y"][20:].any()
    assert bool(out["y"][:20].all())
    assert not out["nodes"][~batch.node_mask].any()
    assert torch.allclose(out["nodes"][batch.node_mask], model.lin(batch.x)[batch.node_mask] + 1)


def test_predict_names_the_output_without_rows(store):
    runner = made_runner(Several(), [CAPACITY], check_padding=False)
    with pytest.raises(ValueError, match=r"the model's output 'table' has no rows"):
        runner.predict(store)


class WithTable(nn.Module):
    """One norm over a table of parameters with as many rows as the bucket has graphs, and one over
    the nodes."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(GRAPHS, 4) * torch.arange(GRAPHS)[:, None])
        self.lin = nn.Linear(3, 4)
        self.over_nodes = nn.BatchNorm1d(4)
        self.over_table = self.over_nodes if shared else nn.BatchNorm1d(4)
        self.over_last = nn.BatchNorm1d(4)

    def forward(self, x, batch, batch_size):
        rows = self.over_table(self.table.relu())
        h = self.lin(x)
        last = self.over_last(h.T * self.table[..., None])  # nodes in the last dimension
        return global_add_pool(self.over_nodes(h) + last[3].T, batch, batch_size) + rows[-1]


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("mode", ["eager", "traced", "cuda-graph"])
def test_a_norm_over_a_table_is_plain_pygs(store, batch, mode, kernels, monkeypatch):
    mode = mode_of(mode, monkeypatch)
    model = WithTable()
    plain = copy.deepcopy(model)
    data = Batch.from_data_list(batch.to_data_list())
    expected = F.mse_loss(plain(data.x, data.batch, 20), data.y)
    expected.backward()
    model = sg.convert(model, kernels=kernels)
    batch = sg.StaticBatch.of(store, range(20), CAPACITY, pointers=kernels)
    runner = sgd_runner(model, [CAPACITY], mode, loss=mse, scope="forward_backward")
    runner.warmup(store, phases=("step",))
    assert torch.allclose(runner.step(batch), expected.detach(), rtol=1e-4)
    assert_same_gradients(model, plain, rtol=0.001, atol=1e-05)
    assert_same_state(model, plain, rtol=1e-4, atol=1e-6)


class Images(nn.Module):
    """Graphs of five nodes each, as a dense block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(15, 4)

    def forward(self, data):
        h = self.norm(data.x.view(-1, 5, 3))
        data.pos[data.pos.isnan()] = 0  # after x was kept for the backward
        return self.head(h.flatten(1)) * (data.size(0) == len(data.x))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", ["eager", "fused"])
@pytest.mark.parametrize("options", [{"batch_size": 7}, {"graphs": 8}, {"batch_size": 30}])
def test_graphs_of_one_size_may_be_laid_out_as_a_block(mode, options):
    model = Images()
    graphs = [
        Data(
            x=torch.randn(5, 3),
            pos=torch.randn(5, 3),
            edge_index=torch.randint(5, (2, 1 + n % 9)),
            y=torch.randn(1, 4),
        )
        for n in range(30)
    ]
    store = sg.GraphStore.from_pyg(graphs)
    plan = sg.plan_buckets(store, **options)
    by_hand = sg.Padder([(45, 80, 9)], schema=store.schema)  # padding nodes of two positions, too
    assert len(by_hand(graphs[:8]).x) == 45
    plain = copy.deepcopy(model)
    runner = sgd_runner(model, plan, mode, loss=mse)
    loss = runner.step(batch := next(iter(runner.loader(store))))
    whole = Batch.from_data_list(batch.to_data_list())
    torch.testing.assert_close(loss, F.mse_loss(plain(whole), whole.y), rtol=1e-4, atol=0)
    assert_same_state(model, plain, rtol=1e-4, atol=1e-6)


def test_a_norm_over_both_is_refused_by_name(batch):
    model = WithTable(shared=True)
    runner = sg.StaticGraphRunner(model, [CAPACITY])
    with pytest.raises(NotStatic, match=r"over_nodes runs over rows of the batch and over a"):
        runner(batch)


def test_a_layer_over_a_tensor_of_the_models_own_is_refused_by_name(batch):
    """A layer other than a norm whose static form works by rows: its effect on the table's rows
    beyond the real graphs is unknown."""
    from torch_geometric.nn import MeanSubtractionNorm

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(GRAPHS, 3))
            self.centre = MeanSubtractionNorm()

        def forward(self, x, batch, batch_size):
            return global_add_pool(x, batch, batch_size) + self.centre(self.table).square().mean()

    runner = sg.StaticGraphRunner(Model(), [CAPACITY])
    with pytest.raises(NotStatic, match=r"centre: 33 rows are graphs in this bucket.*by 1"):
        runner(batch)


class Fixed(nn.Module):
    """The plan's number of graphs is written into the model, so it runs in this bucket only."""

    def forward(self, x, batch):
        out = global_add_pool(x @ torch.ones(3, 4), batch, GRAPHS)
        return {"y": out + 0 * out.new_zeros(GRAPHS, 4), "other": out.view(GRAPHS, 4) + 1}


class OnlyHere(Fixed):
    def forward(self, x, batch):
        assert len(x) == CAPACITY[0]
        return super().forward(x, batch)


def test_what_cannot_be_known_must_be_said(batch):
    with pytest.raises(ValueError, match=r"output 'y' .*may be rows \(graph\).*rows=\{'y': 'graph"):
        sg.StaticGraphRunner(OnlyHere(), [CAPACITY])(batch)
    said = {"y": "graph", "other": None}
    out = made_runner(OnlyHere(), [CAPACITY], rows=said)(batch)
    assert not out["y"][20:].any()
    assert bool(out["other"][20:].any())


def test_what_is_said_is_checked(batch):
    def run(rows):
        return made_runner(Several(), [CAPACITY], rows=rows, check_padding=False)(batch)

    assert not run({"table": "graph"})["table"][20:].any()
    assert bool(run({"nodes": None})["nodes"][~batch.node_mask].any())
    with pytest.raises(ValueError, match=r"'tables'.* has 'y', 'nodes', 'table'"):
        run({"tables": "graph"})
    with pytest.raises(ValueError, match=r"'table': 'node'.*\[33, 4\] in a bucket of 150 rows"):
        run({"table": "node"})
    with pytest.raises(ValueError, match="no level 'atom'"):
        run({"table": "atom"})


def test_a_loss_that_does_not_change_with_the_batch_is_refused(batch):
    """One value per class, with as many classes as graphs, where padding is already in the mean."""
    model = nn.Linear(3, GRAPHS)
    runner = sg.StaticGraphRunner(
        model,
        [CAPACITY],
        forward=lambda m, b: m(b.x),
        loss=lambda out, _: out.square().mean(0),
    )
    with pytest.raises(ValueError, match="the loss has no rows of the batch"):
        runner.eval_step(batch)


def test_the_run_over_other_sizes_leaves_no_trace(batch):
    """Buffers, tables, random state, flags and hook owners are as before, and an autograd graph
    that waits for its backward stays valid."""

    class Random(WithTable):
        def __init__(self):
            super().__init__()
            self.limited = nn.Embedding(9, 3, max_norm=0.1)

        def forward(self, x, batch, batch_size):
            x = x + self.limited((x[:, 0] > 9).long())  # a lookup shortens the rows that it reads
            return F.dropout(super().forward(x, batch, batch_size), 0.5, self.training)

    model = Random()
    runner = sg.StaticGraphRunner(model, [CAPACITY], loss=mse)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    runner.steps.computation.known(batch)
    assert torch.initial_seed() == 3
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
    assert model.training
    assert_same_state(model, before)
    loss = runner._run("step", batch)
    runner.eval_step(batch)  # the first in evaluation mode
    loss.backward()
    assert model.table.grad is not None
