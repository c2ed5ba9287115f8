"""Verification of a runner on one batch: it passes correct runners and finds errors."""

from __future__ import annotations

import copy

import torch
from support.gine_net import CAPACITIES, Net, batches_of
from support.recorded_net import runner_of

import staticgraph as sg


def test_verify_passes_what_is_right_and_changes_nothing(hiv):
    torch.manual_seed(0)
    model = Net()
    runner = runner_of(model, hiv)
    before = copy.deepcopy(model.state_dict())
    verification = runner.verify(batches_of(hiv, 1)[0])
    assert verification.passed, str(verification)
    assert verification.moved == ("x", "edge_attr")
    assert max(verification.errors.values()) < 1e-5
    for name, value in before.items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_verify_compares_every_tensor_of_an_output(hiv):
    class Several(Net):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            return {"all": (out, out.sigmoid()), "largest": out.square().amax()}

    model = Several()
    plan = sg.BucketPlan.of(CAPACITIES)
    runner = sg.StaticGraphRunner(
        sg.Subject(
            model,
            forward=lambda m, b: m(b.x, b.edge_index, b.edge_attr, b.batch),
            check_padding=False,
        ),
        plan,
        mode="eager",
    )
    assert runner.verify(batches_of(hiv, 1)[0]).passed


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


def test_verify_finds_a_wrong_gradient(hiv, monkeypatch):
    model = Net()
    runner = runner_of(model, hiv)
    batch = batches_of(hiv, 1)[0]
    step = runner.step

    def wrong(batch):
        loss = step(batch)
        model.head.weight.grad.mul_(1.01)
        return loss

    monkeypatch.setattr(runner, "step", wrong)
    assert runner.verify(batch).errors["gradients"] > 1e-3
