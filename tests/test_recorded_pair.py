"""Custom training loops over recordings: the output of ``runner(batch)`` has gradients, forward and
backward are replayed, and the trajectory is that of eager."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import assert_same_gradients, assert_same_state, sgd
from support.gine_net import CAPACITIES, Net, batches_of, bce, fixed
from support.runners import made_runner
from torch import nn
from torch_geometric.nn import Sequential

import staticgraph as sg


def recorded(model, hiv, phases=("forward", "eval"), **options):
    runner = made_runner(model, CAPACITIES, "cuda-graph", check_padding=False, **options)
    return runner.warmup(hiv, phases=phases) if phases else runner


def eager(model, **options):
    return made_runner(model, CAPACITIES, "eager", check_padding=False, **options)


def loss_of(runner, batch):
    return sg.masked_mean(bce(runner(batch), batch), batch)


def twins(**options):
    torch.manual_seed(0)
    model = Net(**options)
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loop_of_ones_own_follows_eager(hiv, accumulate):
    """Losses, parameters and statistics match bit for bit; gradients accumulate over buckets."""
    model, twin = twins()
    runners = recorded(model, hiv), eager(twin)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, twin)]
    for number, batch in enumerate(batches_of(hiv, 12)):
        losses = []
        for runner, optimizer in zip(runners, optimizers, strict=True):
            loss = loss_of(runner, batch if runner is runners[0] else fixed(batch.replace()))
            (loss / accumulate).backward()
            if number % accumulate == accumulate - 1:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        assert torch.equal(*losses), number
    assert_same_state(model, twin)
    replays = runners[0].report().replays
    assert sorted(replays.values()) == [0, 0, 6, 6, 6, 6]
    assert "bucket 1 backward of a pair, train (scope step)" in replays


def test_a_gan_sends_gradients_through_the_discriminator(hiv):
    """The generator's output is a field of the discriminator's batch."""
    floats = [hiv[i].update({"x": hiv[i].x.float()}) for i in range(120)]
    store = sg.GraphStore.from_pyg(floats)
    parts, results = (Sequential("x", [(nn.Linear(9, 9), "x -> x")]), Net()), []
    for kind in ("eager", "cuda-graph"):
        nets = copy.deepcopy(parts)
        first, second = (
            made_runner(net, CAPACITIES, kind, check_padding=False, differentiable=("x",))
            for net in nets
        )
        make, judge = (sgd(net, 0.1) for net in nets)
        for runner in (first, second):
            runner.warmup(store, phases=("forward", "eval"))
        for batch in batches_of(store, 4):
            fake = first(batch)
            loss_of(second, batch.replace(x=fake.detach())).backward()
            judge.step()
            loss_of(second, batch.replace(x=fake)).backward()
            make.step()
            make.zero_grad(), judge.zero_grad()
        results.append([parameter for net in nets for parameter in net.parameters()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


def test_evaluation_with_gradients_and_training_without(hiv):
    model, twin = twins()
    one, two = recorded(model, hiv, phases=()), eager(twin)
    batch = fixed(batches_of(hiv, 1)[0])
    model.eval(), twin.eval()
    for runner in (one, two):
        loss_of(runner, batch).backward()
    assert_same_gradients(model, twin)
    model.train(), twin.train()
    with torch.no_grad():
        outs = [runner(batch) for runner in (one, two)]
    assert torch.equal(*outs)
    assert not outs[0].requires_grad
    assert_same_state(model, twin)


def test_a_backward_after_another_replay_is_refused(hiv):
    """Whichever recording ran has overwritten memory that this forward kept."""
    model, _ = twins()
    runner = recorded(model, hiv)
    first, second, *_ = batches_of(hiv, 2)
    for disturb in (lambda: runner(second), lambda: runner.eval_step(second)):
        loss = loss_of(runner, first)
        disturb()
        with pytest.raises(
            sg.errors.StaleOutput, match="replayed 1 more recording after this forward"
        ):
            loss.backward()
    loss = loss_of(runner, first)
    loss.backward(retain_graph=True)
    with pytest.raises(sg.errors.StaleOutput, match="and once: retain_graph"):
        loss.backward()
    loss = loss_of(runner, first)
    with torch.no_grad():
        model.head.bias.add_(1)
    with pytest.raises(sg.errors.StaleOutput, match="changed after this forward"):
        loss.backward()


def test_gradients_that_were_not_recorded_are_refused(hiv):
    model, _ = twins()
    model.head.requires_grad_(False)
    runner = recorded(model, hiv)
    batch = batches_of(hiv, 1)[0]
    loss_of(runner, batch).backward()
    assert model.head.weight.grad is None
    model.conv.requires_grad_(False)  # fewer than recorded is fine
    model.zero_grad()
    loss_of(runner, batch).backward()
    assert all(p.grad is None for p in model.conv.parameters())
    assert model.atoms.weight.grad is not None
    model.head.requires_grad_(True)
    with pytest.raises(sg.NotStatic, match=r"head\.weight requires a gradient, which it did not"):
        runner(batch)


def test_a_model_that_was_changed_is_refused(hiv):
    """A pair does not run the model's Python either."""
    model, _ = twins(dropout=0.5)
    runner = recorded(model, hiv)
    loader = sg.StaticLoader(hiv, sg.BucketPlan.of(CAPACITIES, batch_size=30))
    loss_of(runner, next(iter(loader))).backward()
    dropout = next(module for module in model.modules() if isinstance(module, nn.Dropout))
    dropout.p = 0.1
    with pytest.raises(sg.NotStatic, match=r"p was 0\.5, is 0\.1.*call warmup\(\) again"):
        runner(next(iter(loader)))


def test_batches_made_from_ids(hiv, monkeypatch):
    """The recording fills its input from the ids; no batch is made outside of it."""
    model, twin = twins()
    moved = hiv.to("cpu")
    runners = recorded(model, moved), recorded(twin, hiv)
    plan = sg.BucketPlan.of(CAPACITIES, batch_size=30)
    indices = range(120)
    streams = zip(*(sg.StaticLoader(s, plan, indices=indices) for s in (moved, hiv)), strict=True)
    for one, other in streams:
        with monkeypatch.context() as patch:
            patch.setattr(
                "staticgraph.batches.loading.from_device.collate", lambda *_: pytest.fail("made")
            )
            out = runners[0](one)
        expected = runners[1](other)
        assert torch.equal(out, expected)
        for values, batch in ((out, one), (expected, other)):
            sg.masked_mean(values.square(), batch).backward()
    assert_same_gradients(model, twin)
    assert runners[0].report().fallbacks == ()
