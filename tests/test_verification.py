"""Verification of a runner on one batch: it passes correct runners and finds errors."""

from __future__ import annotations

import copy
import dataclasses
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from support.alike import adam, assert_same_state, squared, warned_of
from support.gine_net import Net, batches_of
from support.recorded_net import runner_of
from torch_geometric.nn import GCN, global_add_pool

import staticgraph as sg
from staticgraph.steps.computation.model_setup import Subject


def test_verify_passes_what_is_right_and_changes_nothing(hiv):
    model = Net()
    runner = runner_of(model, hiv)
    before = copy.deepcopy(model.state_dict())
    verification = runner.verify(batches_of(hiv, 1)[0])
    assert verification.passed, str(verification)
    assert verification.moved == ("x", "edge_attr")
    assert max(verification.errors.values()) < 1e-5
    assert_same_state(model, before)


def test_a_parameter_that_is_nan_on_both_sides_is_equal(hiv):
    """PyG's ``RGATConv`` leaves one unset."""
    model = Net()
    model.unset = torch.nn.Parameter(torch.full((1,), torch.nan))
    verification = runner_of(model, hiv).verify(batches_of(hiv, 1)[0])
    assert verification.passed, str(verification)


def test_verify_finds_stale_inputs(hiv, monkeypatch):
    runner = runner_of(Net(), hiv)
    first, second = batches_of(hiv, 2)[0], batches_of(hiv, 3)[2]
    runner.eval_step(first)
    runner.step(first)
    monkeypatch.setattr(
        "staticgraph.recording.recorded_inputs.RecordedInputs.take", lambda *_: None
    )
    verification = runner.verify(second)
    assert not verification.passed
    assert "fields that move the output: NONE" in str(verification)


@pytest.mark.parametrize(
    ("kind", "factor", "dtype"),
    [
        ("gradients", 1.01, torch.float32),
        ("optimizer", 1.01, torch.float32),
        ("gradients", 1 + 1e-6, torch.float64),
    ],
)
def test_verify_finds_what_is_wrong_after_a_step(hiv, kind, factor, dtype, monkeypatch):
    runner = runner_of(Net().to(dtype), hiv)
    batch = batches_of(hiv, 1)[0]
    step, weight = runner.step, runner.model.head.weight

    def wrong(batch):
        loss = step(batch)
        average = runner.subject.optimizer.state[weight]["exp_avg"]
        (weight.grad if kind == "gradients" else average).mul_(factor)
        return loss

    monkeypatch.setattr(runner, "step", wrong)
    verification = runner.verify(batch)
    errors, tolerance = verification.errors, verification.tolerance
    assert [name for name, error in errors.items() if error > tolerance] == [kind]


class Normed(torch.nn.Module):
    """The gradient of the bias before the norm is zero but for rounding."""

    def __init__(self):
        super().__init__()
        self.lin, self.norm = torch.nn.Linear(9, 16), torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x, batch):
        h = self.norm(self.lin(x.float())).relu()
        return self.head(global_add_pool(h, batch))


def normed(lr, kind=Normed):
    torch.manual_seed(0)
    model = kind()
    return Subject(
        model,
        loss=squared,
        optimizer=adam(model, lr=lr),
    )


def test_a_gradient_of_rounding_does_not_fail_a_step_of_adam(esol):
    plan = sg.plan_buckets(esol, batch_size=32)
    runner = sg.StaticGraphRunner(normed(0.1), plan, mode="fused")
    verification = runner.verify(next(iter(runner.loader(esol))))
    assert verification.passed, str(verification)
    assert verification.left_out < 64, "of 209"


class WithTiny(Normed):
    """A parameter whose gradient is below the tolerance beside all others."""

    def __init__(self):
        super().__init__()
        self.tiny = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, batch):
        return super().forward(x, batch) + 1e-6 * self.tiny


def left_as_it_was(model, before):
    model.head.weight.copy_(before["head.weight"])


def of_the_wrong_sign(model, before):
    model.tiny.grad.neg_()
    model.tiny.neg_()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "change"), [(Normed, left_as_it_was), (WithTiny, of_the_wrong_sign)]
)
def test_a_wrong_update_is_not_taken_for_rounding(esol, kind, change, monkeypatch):
    plan = sg.plan_buckets(esol, batch_size=32)
    subject = normed(0.1, kind)
    runner = sg.StaticGraphRunner(subject, plan, mode="fused")
    batch = next(iter(runner.loader(esol)))
    step = runner.step

    def wrong(batch):
        before = copy.deepcopy(subject.model.state_dict())
        loss = step(batch)
        with torch.no_grad():
            change(subject.model, before)
        return loss

    monkeypatch.setattr(runner, "step", wrong)
    verification = runner.verify(batch)
    assert verification.errors["gradients"] < 0.001 < verification.errors["parameters"]
    assert not verification.passed


class Dropped(Normed):
    """Random numbers in training, beside a step that mode ``fused`` rewrites."""

    def forward(self, x, batch):
        h = F.dropout(self.lin(x.float()).relu(), 0.3, self.training) + torch.rand(16)
        return self.head(global_add_pool(self.norm(h), batch))


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [Normed, Dropped])
@pytest.mark.parametrize("wrong", ["nowhere", "here", "everywhere"])
def test_a_first_step_is_compared_with_eager(esol, kind, wrong, monkeypatch):
    """A gradient that differs from these very parameters alone is that of a ReLU at its zero."""
    plan = sg.plan_buckets(esol, batch_size=32)
    runner = sg.StaticGraphRunner(normed(0.1, kind), plan, mode="fused")
    train = runner.steps.train

    def train_wrong(batch, way=None):
        here = torch.equal(runner.model.head.weight, state["head.weight"])
        loss = train(batch, way)
        if way == "fused" and (here or wrong == "everywhere"):
            runner.model.head.weight.grad.mul_(1.01)
        return loss

    if wrong != "nowhere":
        monkeypatch.setattr(runner.steps, "train", train_wrong)
    batches = list(map(sg.StaticBatch.clone, islice(runner.loader(esol), 2)))
    state = copy.deepcopy(runner.model.state_dict())
    with warned_of("") as told:
        runner.preparation.compared.compare(batches[0])
        runner.preparation.compared.compare(batches[1])
    assert [text[:14] for text in told] == ["the first step"] * (wrong == "everywhere")
    assert_same_state(runner.model, state)


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.head = torch.nn.Linear(9, 64), torch.nn.Linear(64, 1)
        self.body = GCN(64, 64, 4, norm="BatchNorm")

    def forward(self, x, edge_index, batch):
        return self.head(global_add_pool(self.body(self.lin(x.float()), edge_index), batch))


@pytest.mark.slow
@pytest.mark.filterwarnings("error::UserWarning")
def test_rounding_in_an_autocast_is_no_wrong_first_step(esol):
    """Eager itself is as far from float32 as ``fused`` is from eager."""
    subject = dataclasses.replace(normed(0.1, Deep), autocast=torch.bfloat16)
    runner = sg.StaticGraphRunner(subject, sg.plan_buckets(esol, batch_size=32), mode="fused")
    runner.step(next(iter(runner.loader(esol))))
    assert runner.preparation.compared.buckets
