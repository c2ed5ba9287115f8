"""Missing labels are those of the fields that the loss reads, whatever their names, and whether or
not the data that a step was made for had missing labels."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.alike import assert_same_gradients
from support.graphs import LABELLED_CAPACITY as CAPACITY
from support.graphs import labelled_batch, labelled_graphs
from support.places import mode_of
from support.runners import made_runner, sgd_runner
from torch import nn
from torch_geometric.data import Batch, HeteroData
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.errors import NonFiniteLoss

NAN = float("nan")
MODES = ["eager", "traced", "cuda-graph"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3).double()

    def forward(self, x, batch, batch_size):
        return global_add_pool(self.lin(x), batch, batch_size)


def runner_of(loss, mode="eager", store=None, model=None, **options):
    model = Net() if model is None else model
    runner = sgd_runner(model, [CAPACITY], mode, loss, scope="forward_backward", **options)
    return runner if store is None else runner.warmup(store, phases=("step",))


def energy(out, batch):
    return (out[:, 0] - batch.energy).square()


def two(out, batch):
    return (out[:, 0] - batch.energy).square() + (out[:, 1] - batch["gap"]).square()


def tasks(out, batch):
    return F.mse_loss(out, batch.tasks, reduction="none")


def kinds(out, batch):
    return F.cross_entropy(out, batch.kind, reduction="none")


def known_of(name, data):
    """The labelled entries, computed independently from the fields of PyG's batch."""
    if name == "two":
        return ~(data.energy.isnan() | data.gap.isnan())
    if name == "kinds":
        return torch.ones(10, dtype=torch.bool)
    return ~data[name].isnan()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("loss", "mode"),
    [(loss, mode) for loss in (energy, two, tasks, kinds) for mode in MODES],
)
def test_any_field_that_the_loss_reads_may_lack_labels(loss, mode, monkeypatch):
    """Loss and gradients equal plain PyG's over labelled entries; the steps were made for data
    whose schema says that no labels are missing."""
    complete = sg.GraphStore.from_pyg(labelled_graphs(missing=False))
    lacking = sg.GraphStore.from_pyg(labelled_graphs(), schema=complete.schema)
    model = Net()
    plain = copy.deepcopy(model)
    runner = runner_of(loss, mode_of(mode, monkeypatch), complete, model)
    batch = sg.StaticBatch.of(lacking, range(10), CAPACITY)
    data = Batch.from_data_list(labelled_graphs())
    for part, known in (("energy", data.energy), ("gap", data.gap)):
        data[part] = torch.where(known.isnan(), 0, known)
    clean = data.clone()
    clean.tasks = torch.where(data.tasks.isnan(), 0, data.tasks)
    of = Batch.from_data_list(labelled_graphs())
    expected = loss(plain(data.x, data.batch, 10), clean)[known_of(loss.__name__, of)].mean()
    expected.backward()
    found = runner.step(batch)
    assert torch.allclose(found, expected.detach(), rtol=1e-5)
    assert_same_gradients(model, plain, rtol=0.0001, atol=1e-06)
    runner.check_finite()


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_left_out_is_an_error(mode, known, monkeypatch):
    """A loss with another shape than the field: refused if the data are known to lack labels,
    otherwise not finite, with an error that names the graphs."""

    def weighted(out, batch):
        return out.square() * batch.gap[:, None]

    mode = mode_of(mode, monkeypatch)
    lacking = sg.GraphStore.from_pyg(labelled_graphs())
    complete = sg.GraphStore.from_pyg(labelled_graphs(missing=False))
    assert lacking.schema["gap"].has_nan
    batch = sg.StaticBatch.of(lacking, range(10), CAPACITY)

    def made_and_run():
        runner = runner_of(weighted, mode, lacking if known else complete)
        runner.step(batch)
        runner.check_finite()

    if known:
        with pytest.raises((ValueError, sg.NotStatic), match="some values of 'gap' are missing"):
            made_and_run()
        return
    batch.layout = sg.StaticBatch.of(complete, range(10), CAPACITY).layout
    with pytest.raises(NonFiniteLoss, match="the batch of graphs 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 "):
        made_and_run()


def test_a_field_that_the_loss_does_not_read_may_hold_nan():
    """And a NaN that the model computes does not count as a missing label."""
    batch = labelled_batch()
    runner = runner_of(lambda out, batch: (out[:, 0] - batch.weight).square())
    assert bool(torch.isfinite(runner.step(batch)))

    def sets_its_own(model, batch):
        batch.energy = batch.energy * NAN
        return model(batch.x, batch.batch, batch.batch_size)

    diverged = runner_of(energy, forward=sets_its_own)
    with pytest.raises(NonFiniteLoss):
        diverged.step(batch)


def test_labels_of_one_type_do_not_ask_for_those_of_another():
    data = HeteroData()
    data["a"].x, data["a"].target = torch.randn(4, 3), torch.tensor([1.0, NAN, 2.0, 3.0])
    data["b"].x, data["b"].target = torch.randn(2, 3), torch.tensor([NAN, 1.0])
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 1]])
    store = sg.GraphStore.from_pyg([data])
    plan = sg.plan_buckets(store, batch_size=1)
    model = nn.Linear(3, 1)

    def loss(out, batch):
        return (out[:, 0] - batch.target_dict["a"]).square()

    runner = sg.StaticGraphRunner(model, plan, loss=loss, forward=lambda m, b: m(b["a"].x))
    (batch,) = list(sg.StaticLoader(store, plan))
    known = ~data["a"].target.isnan()
    expected = (model(data["a"].x)[:, 0] - data["a"].target)[known].square().mean()
    assert torch.allclose(runner.eval_step(batch).loss, expected.detach())


def by_labels(out, batch):
    """Tasks with few labels get more weight: correct in plain PyG, where missing labels are NaN."""
    there = ~torch.isnan(batch.tasks) & batch.graph_mask[:, None]
    shares = there.sum() / there.sum(0).clamp(min=1)
    return F.mse_loss(out, torch.nan_to_num(batch.tasks), reduction="none") * shares


def equal_to_itself(out, batch):
    """The check for missing labels that OGB uses."""
    y = batch.tasks
    return torch.where(y == y, (out - torch.where(y == y, y, 0)).square(), 100 + out.square())


@pytest.mark.parametrize("loss", [by_labels, equal_to_itself])
def test_a_loss_that_asks_which_labels_are_missing_is_refused(loss):
    """It reads zeros there, so its value would silently differ from plain PyG's."""
    batch = labelled_batch()
    with pytest.raises(sg.errors.PaddingLeaks, match=r"the loss is off.*needs a mask of its own"):
        runner_of(loss).step(batch)


def test_a_mask_of_its_own_serves_a_loss_that_needs_to_know():
    made = labelled_graphs()
    for data in made:
        data.there = ~torch.isnan(data.tasks)
    store = sg.GraphStore.from_pyg(made)
    batch = sg.StaticBatch.of(store, range(10), CAPACITY)

    def by_mask(out, batch):
        there = batch.there & batch.graph_mask[:, None]
        return tasks(out, batch) * (there.sum() / there.sum(0).clamp(min=1))

    model = Net()
    data = Batch.from_data_list(made)
    there = ~torch.isnan(data.tasks)
    wrong = (model(data.x, data.batch, 10) - torch.nan_to_num(data.tasks)).square()
    expected = (wrong * there.sum() / there.sum(0).clamp(min=1))[there].mean()
    found = runner_of(by_mask, model=model).step(batch)
    assert float(found) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_loss_that_asks_is_refused_though_the_first_batch_has_all_labels():
    """The loss is tried on the first batch with one label removed."""
    data = labelled_graphs(missing=False)
    data[9].tasks[0, 1] = NAN
    store = sg.GraphStore.from_pyg(data)

    def asks(out, batch):
        there = ~torch.isnan(batch.tasks)
        return torch.where(there, (out - batch.tasks.nan_to_num()).square(), out.abs())

    batch = sg.StaticBatch.of(store, range(5), CAPACITY)
    runner_of(tasks).step(batch)
    with pytest.raises(sg.errors.PaddingLeaks, match="a missing label"):
        runner_of(asks).step(batch)


@pytest.mark.parametrize("mode", ["eager", "fused", "cuda-graph"])
def test_a_loop_of_ones_own_leaves_out_missing_labels(mode):
    """Value and gradients are plain PyG's over the entries that have a label."""
    model = Net()
    runner = made_runner(model, [CAPACITY], mode)
    batch = labelled_batch()
    out = runner(batch)
    mean = sg.masked_mean(lambda seen: F.mse_loss(out, seen.tasks, reduction="none"), batch)
    mean.backward()
    plain, data = copy.deepcopy(model), Batch.from_data_list(labelled_graphs())
    plain.zero_grad()
    own = plain(data.x, data.batch, 10)
    known = ~data.tasks.isnan()
    expected = F.mse_loss(own[known], data.tasks[known])
    expected.backward()
    torch.testing.assert_close(mean, expected)
    assert_same_gradients(model, plain, rtol=1.3e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["eager", "fused", "cuda-graph"])
def test_no_gradient_that_is_not_finite_reaches_a_parameter(mode):
    model = Net()
    runner = made_runner(model, [CAPACITY], mode)
    batch = labelled_batch()
    values = F.mse_loss(runner(batch), batch.tasks, reduction="none")
    for read in ((), ("tasks",)):
        with pytest.raises(ValueError, match=r"labels that are missing .* 'tasks'"):
            sg.masked_mean(values, batch, read)
    with pytest.raises(NonFiniteLoss, match=r"graphs 0, 1, 2, .*gradient by the model's output"):
        values[batch.graph_mask].nanmean().backward()
    assert all(p.grad is None for p in model.parameters())
    values = runner(batch).square() / batch.graph_mask[:, None]  # NaN in padding alone
    sg.masked_mean(values, batch).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
