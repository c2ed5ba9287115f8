"""Obstacles built in on purpose are found and named with their line; static models have none."""

from __future__ import annotations

import copy
import json
import textwrap
from dataclasses import replace

import pytest
import torch
from support import obstacle_models
from support.alike import assert_same_state
from support.command import write_module
from support.examples import EXAMPLES
from support.layer_cases import CASES, C
from support.layer_model import model_of
from support.obstacle_models import OBSTACLES, PLAN, Item, MaskIndex, Net, Unique, where_of
from support.parity import BATCH, STORE, unknown_counts
from support.places import mode_of
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GPSConv, global_add_pool, global_mean_pool
from torch_geometric.utils import to_dense_batch

import staticgraph as sg
from staticgraph.checking.check import check
from staticgraph.checking.explain import explain
from staticgraph.checking.watching import Watch
from staticgraph.cli import main
from staticgraph.nn import context_of


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "reason", "operation"), OBSTACLES, ids=lambda v: str(v)[:40])
def test_an_obstacle_is_found_and_named_with_its_line(kind, reason, operation):
    report = check(kind().double(), PLAN, STORE)
    assert not report.ok
    found = {(o.kind, o.where) for o in report.obstacles}
    assert (reason, where_of(kind)) in found
    assert operation in str(report)
    first = report.obstacles[0]
    assert first.kind == reason
    assert "# here" in first.line
    assert first.remedy in str(report)


def test_every_obstacle_of_a_model_is_found_at_once():
    class Several(Net):
        def trick(self, h):
            h = Item.trick(self, h)
            h = MaskIndex.trick(self, h)
            return Unique.trick(self, h)

    wheres = [o.where for o in check(Several().double(), PLAN, STORE).obstacles]
    assert wheres == [where_of(kind) for kind in (Item, MaskIndex, Unique)]


def test_a_static_model_passes_and_is_not_changed():
    model = Net().double()
    before = copy.deepcopy(model.state_dict())
    report = check(model, PLAN, STORE).raise_for_obstacles()
    assert report
    assert report.graphs == 1
    assert report.parity < 1e-9
    assert type(model.norm) is nn.BatchNorm1d
    assert_same_state(model, before)
    rows = {row.path: row for row in report.modules}
    assert rows["conv"].how == "as it is"
    assert rows["norm"].how != "as it is"
    assert all(row.inert for row in rows.values())
    json.dumps(report.to_dict())


def test_what_is_rewritten_is_added_where_asked_for(esol):
    plan = sg.plan_buckets(esol, batch_size=32)
    model = sg.models.build("gine", esol, hidden=8, layers=1)
    report = sg.check(model, plan, esol, rewrites=True, differentiable=())
    assert report.rewrites == explain(model, plan, esol)
    assert str(report).endswith(str(report.rewrites))
    assert report.to_dict()["rewrites"]["done"]
    assert "rewrites" not in sg.check(model, plan, esol).to_dict()


@pytest.mark.parametrize("share", [1.0, 1e-7])
def test_padding_that_reaches_real_rows_is_measured_and_its_module_named(share):
    class Centred(nn.Module):
        def forward(self, h):
            return h - share * h.mean(0)

    model = Net().double()
    model.norm = Centred()
    report = check(model, PLAN, STORE)
    (obstacle,) = report.obstacles
    assert obstacle.kind == "padding reaches real rows"
    assert obstacle.module == "norm"
    assert {row.path: row.inert for row in report.modules}["norm"] is False


class Counting(Net):
    def trick(self, h):
        return h / len(h)


class Wide(Net):
    """Over the width of a dense block, which the largest graph of a batch fills."""

    def forward(self, x, edge_index, batch):
        h, _ = to_dense_batch(self.trick(self.conv(x, edge_index)), batch)
        return self.head(h.mean(1))


class Backwards(Net):
    """Read backwards, a padded sequence begins with padding."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(C, C, batch_first=True, bidirectional=True)

    def forward(self, x, batch):
        h, mask = to_dense_batch(x, batch)
        return (self.lstm(h)[0] * mask[..., None]).sum(1)


class Norms(Net):
    """The forward is fine: a padding graph has no nodes, and an empty norm has no derivative."""

    def forward(self, x, edge_index, batch):
        block, _ = to_dense_batch(x, batch)  # zeros for a padding graph
        length = self.conv.lin(block).square().sum((1, 2)).sqrt()
        return super().forward(x, edge_index, batch) * length[:, None]


class Spread(Net):
    """A deviation has no derivative over a padding graph of one node."""

    def forward(self, x, batch):
        h = self.head(x)
        return global_mean_pool((h - global_mean_pool(h, batch)[batch]).square(), batch).sqrt()


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        (Counting, "differs from plain PyG", ""),
        (Wide, "differs from plain PyG", "width of a dense block"),
        (Backwards, "differs from plain PyG", ""),
        (Norms, "padding breaks a gradient", "is not finite"),
        (Spread, "padding breaks a gradient", ""),
    ],
)
def test_what_padding_changes_is_told(model, kind, words):
    """Also if the first graphs of a store include the largest."""
    graphs = STORE[:] if model is not Spread else [g for g in STORE[:] if g.num_nodes > 1]
    store = sg.GraphStore.from_pyg(graphs, progress=False)
    (obstacle,) = check(model().double(), sg.plan_buckets(store, batch_size=4), store).obstacles
    assert obstacle.kind == kind
    assert words in f"{obstacle.line} {obstacle.remedy}"


class Attending(Net):
    def __init__(self, **options):
        super().__init__()
        self.gps = GPSConv(C, None, **options)

    def forward(self, x, edge_index, batch):
        return self.head(global_mean_pool(self.gps(x, edge_index, batch), batch))


def test_a_path_of_attention_that_is_impossible_is_named():
    model = Attending(attn_kwargs={"add_zero_attn": True}).double()
    report = check(sg.convert(model, attention="kernel"), PLAN, STORE)
    (obstacle,) = report.obstacles
    assert obstacle.kind == "refused"
    assert obstacle.module == "gps"
    assert "add_zero_attn gives each graph a key" in obstacle.operation
    with pytest.raises(sg.NotStatic, match="Choose 'auto' or 'dense'"):
        report.raise_for_obstacles()


def test_the_path_of_attention_is_told_with_its_reason():
    for model in (Attending().double(), sg.convert(Attending().double())):
        rows = {row.path: row.how for row in check(model, PLAN, STORE).modules}
        assert rows["gps"].startswith("attention kernel, see below")
    asked = check(sg.convert(Attending().double(), attention="dense"), PLAN, STORE)
    assert "(gps): dense, as asked" in str(asked)
    (row,) = asked.to_dict()["attention"]
    assert row["path"] == "dense"


def test_a_tensor_that_is_no_buffer_is_named():
    model = Net().double()
    model.head.scale = torch.ones(2)
    (obstacle,) = check(model, PLAN, STORE).obstacles
    assert (obstacle.kind, obstacle.module) == ("host-to-device copy", "head")
    assert "self.scale" in obstacle.operation


class GivenClasses(Net):
    def trick(self, h):
        return h * nn.functional.one_hot((h[:, :1] > 0).long(), 2)[:, 0, :1]


class GivenRepeats(Net):
    def trick(self, h):
        return h.repeat_interleave(torch.ones_like(h[:, 0]).long(), dim=0, output_size=len(h))


class FollowsDevice(Net):
    def trick(self, h):
        return h.to(h.device).to(torch.device(h.device))


class OldNorm(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.utils.spectral_norm(self.head)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [GivenClasses, GivenRepeats, FollowsDevice, OldNorm])
def test_what_a_recording_can_hold_is_not_blamed(kind):
    check(kind().double(), PLAN, STORE).raise_for_obstacles()


def test_hooks_that_a_compiled_step_would_leave_out_are_refused():
    """PyG calls message hooks in eager mode only, so the numbers would silently differ."""
    model = Net().double()
    model.conv.register_message_forward_hook(lambda module, given, out: 1.5 * out)
    (obstacle,) = check(model, PLAN, STORE).obstacles
    assert (obstacle.kind, obstacle.module) == ("refused", "conv")
    runner = sg.StaticGraphRunner(model, PLAN, mode="default")
    with pytest.raises(sg.NotStatic, match="conv: GCNConv has a message_forward_hook"):
        runner(BATCH)


def test_a_model_that_does_not_run_is_told_and_not_raised():
    (obstacle,) = check(Net(), PLAN, STORE).obstacles  # a float32 model on float64 data
    assert obstacle.kind == "the model raises"
    assert obstacle.where.startswith(obstacle_models.__file__)
    assert "model.double()" in obstacle.remedy


def test_a_model_that_cannot_be_copied_says_why():
    model = Net()
    with pytest.warns(FutureWarning):
        model.head = nn.utils.weight_norm(model.head)
    with pytest.raises(ValueError, match=r"head\.weight carries a gradient.*parametrizations"):
        check(model.double(), PLAN, STORE)


def test_without_an_example_the_plans_graphs_are_taken_or_some_are_made_up():
    plan = sg.plan_buckets(STORE, batch_size=4)
    assert check(Net().double(), replace(plan, source=type(None))).ok
    with pytest.raises(ValueError, match=r"pass check\(model, plan, graphs\)"):
        check(Net(), PLAN)
    graphs = [STORE[0], STORE[1]]
    assert check(Net().double(), sg.plan_stream(graphs, batch_size=2)).ok
    assert check(Net().double(), PLAN, graphs).ok


class OfPoints(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.lin, self.head = nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x, batch):
        return self.head(global_add_pool(self.lin(self.norm(x)).relu(), batch))


def alike(number: int) -> int:
    return 4


def differing(number: int) -> int:
    return 2 + number % 3


def single(number: int) -> int:
    """Batches of one such graph are refused: a norm over a single row is an error in plain PyG."""
    return 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("nodes", "edges", "batch_size"),
    [(alike, 0, 1), (alike, 3, 2), (differing, 3, 1), (differing, 0, 2), (single, 0, 2),
     (single, 3, 2)],
)  # fmt: skip
def test_batches_of_few_graphs_that_fill_their_bucket(nodes, edges, batch_size, monkeypatch):
    """Sets and point clouds have no edges; if all have one size, every batch is full and the only
    padding is the reserve."""
    graphs = [
        Data(
            x=torch.randn(nodes(k), 3),
            edge_index=torch.zeros(2, edges, dtype=torch.long),
            y=torch.zeros(1, 1),
        )
        for k in range(6)
    ]
    store = sg.GraphStore.from_pyg(graphs, progress=False)
    plan = sg.plan_buckets(store, batch_size=batch_size)
    for example in (store, None):
        report = check(OfPoints(), plan, example)
        assert report.recordable, str(report)
        assert report.parity is not None
    runner = sg.StaticGraphRunner(OfPoints(), plan, mode_of("traced", monkeypatch))
    runner.warmup(store, progress=False)
    assert runner.predict(store).shape == (6, 1)


def test_an_example_that_fits_no_bucket_is_refused_by_its_numbers():
    with pytest.raises(
        sg.errors.GraphTooLarge, match=r"no graph of the example fits .* at least 1 node and 1 edge"
    ):
        check(Net(), [(2, 0, 3, 1)], STORE)


def test_no_layer_of_the_table_is_blamed():
    """Watched as preflight does it, none of the static forms shows an obstacle."""
    blamed = {}
    for case in CASES:
        if case.eager_only:
            continue
        model = model_of(case)
        context, watch = context_of(model), Watch()
        with watch.running():
            context.enter(unknown_counts(BATCH))
            model(unknown_counts(BATCH))
            context.leave()
        if watch.obstacles:
            blamed[case.name] = [(o.kind, o.operation, o.where) for o in watch.obstacles]
    assert blamed == {}


@pytest.mark.parametrize(
    ("source", "status", "says"),
    [("h", 0, "static: nothing stands in the way"), ("h / h.max().item()", 1, "net.py:12")],
)
def test_the_command_names_the_line(source, status, says, tmp_path, monkeypatch, capsys):
    text = f"""\
        import torch
        from torch_geometric.nn import GCNConv, global_add_pool

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = GCNConv(7, 4)

            def forward(self, x, edge_index, batch):
                h = self.conv(x.float(), edge_index)
                return global_add_pool(
                    {source}, batch)
        """
    write_module("net", textwrap.dedent(text), tmp_path, monkeypatch)
    data = EXAMPLES / "MUTAG.npz"
    assert main(["check", "--model", "net:Net", "--data", str(data)]) == status
    assert says in capsys.readouterr().out


def test_a_model_that_writes_on_its_batch_is_checked_on_the_batch_as_it_came():
    class Writes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(C, C)

        def forward(self, data):
            data.x = self.lin(data.x)
            return global_mean_pool(data.x, data.batch)

    report = check(Writes().double(), PLAN, STORE)
    assert report.ok
    assert report.parity < 1e-9


def test_a_layer_that_keeps_the_first_batch_is_refused():
    """With fixed shapes, nothing would notice that the edges belong to another batch."""
    model = Net()
    model.conv = GCNConv(C, C, cached=True)
    (obstacle,) = check(model.double(), PLAN, STORE).obstacles
    assert (obstacle.kind, obstacle.module) == ("refused", "conv")
    assert "pass cached=False" in obstacle.operation
    with pytest.raises(sg.NotStatic, match=r"conv: GCNConv\(cached=True\).*pass cached=False"):
        sg.StaticGraphRunner(model, PLAN)
    rare = torch.nn.Embedding(3, 2, scale_grad_by_freq=True)
    with pytest.raises(sg.NotStatic, match=r"pass scale_grad_by_freq=False"):
        sg.StaticGraphRunner(rare, PLAN, forward=lambda model, batch: model(batch.z))


def test_a_list_of_graphs_is_no_store():
    graphs = STORE[:3]
    with pytest.raises(TypeError, match=r"sg.GraphStore.from_pyg\(graphs\)"):
        sg.plan_buckets(graphs, batch_size=2)
    with pytest.raises(TypeError, match=r"sg.GraphStore.from_pyg\(graphs\)"):
        sg.StaticLoader(graphs, PLAN)
