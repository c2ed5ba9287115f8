"""The library's own recorder, which repeats noted calls on noted tensors: one recording per key,
and replay equals eager."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import assert_same_gradients, assert_same_state, same, sgd
from support.arena import HostRead
from support.gine_net import Net, adam, batches_of, eager_of, fixed
from support.places import Place
from support.recorded_net import runner_of
from torch.utils._python_dispatch import TorchDispatchMode

import staticgraph as sg


@pytest.mark.parametrize("scope", ["step", "forward_backward", "forward"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_twenty_steps_over_two_buckets_equal_eager(hiv, scope, clip):
    """Losses, parameters, buffers and optimizer state match bit for bit: the same calls in the same
    order. (``forward`` compiles its training step, which may round differently.)"""
    model = Net()
    twin = copy.deepcopy(model)
    runner = runner_of(model, hiv, scope=scope, clip_norm=clip, warm=scope != "forward")
    if scope == "forward":
        runner.warmup(hiv, phases=("eval",))
    eager = eager_of(twin, adam(twin), clip_norm=clip)
    steps = batches_of(hiv)
    if scope != "forward":
        for batch in steps:
            assert torch.equal(runner.step(batch), eager.step(fixed(batch)))
        assert_same_state(model, twin)
    result, expected = runner.eval_step(steps[0]), eager.eval_step(fixed(steps[0]))
    assert torch.allclose(result.out, expected.out, atol=1e-6)


def test_recording_changes_nothing(hiv):
    model = Net(dropout=0.5)
    optimizer = adam(model)
    eager_of(model, optimizer).step(batches_of(hiv, 1)[0])  # some state to keep

    def state():
        grads = [p.grad for p in model.parameters()]
        return model.state_dict(), optimizer.state_dict()["state"], grads, torch.get_rng_state()

    before = copy.deepcopy(state())
    runner_of(model, hiv, optimizer)
    assert same(state(), before)


def test_every_input_field_reaches_its_address(hiv):
    """Changing one field changes the output; with a skipped copy (stale input) it would not."""
    runner = runner_of(Net(), hiv)
    batch = batches_of(hiv, 1)[0]
    out = runner.eval_step(batch).out
    assert torch.equal(out, runner.eval_step(batch).out)
    changed = {
        "x": batch.x + 1,
        "edge_attr": batch.edge_attr + 1,
        "edge_index": batch.edge_index.flip(0).roll(1, 1),
        "batch": torch.where(batch.node_mask, (batch.batch + 1) % 30, batch.batch),
    }
    for name, value in changed.items():
        assert not torch.equal(out, runner.eval_step(batch.replace(**{name: value})).out), name
    losses = {float(runner.eval_step(b).loss) for b in batches_of(hiv, 6)}
    assert len(losses) == 6


def test_one_recording_a_key_and_none_later(hiv):
    place = Place("cpu")
    runner = runner_of(Net(), hiv, recorder=place.recorder)
    assert place.recorders[0].recorded == 4
    for batch in batches_of(hiv, 10):
        runner.step(batch)
        runner.eval_step(batch)
    assert place.recorders[0].recorded == 4
    report = runner.report()
    assert [bucket.recordings for bucket in report.buckets] == [2, 2]
    assert set(report.replays.values()) == {5}
    assert "recorded: bucket 0 step (scope step), replayed 5 times" in str(report)


def test_garbage_in_the_padding_of_a_recorded_step_changes_nothing(hiv):
    """Losses and trajectory over two buckets do not depend on any field's padding rows."""
    model = Net()
    twin = copy.deepcopy(model)
    runner, clean = runner_of(model, hiv), runner_of(twin, hiv)
    for step, batch in enumerate(batches_of(hiv, 8)):
        garbage = {}
        for field in batch.layout.schema:
            value = batch[field.name].clone()
            padding = ~batch.mask_of(value)
            value[padding] = value.max() if field.name != "y" else 1e3
            garbage[field.name] = value
        poisoned = batch.replace(**garbage)
        assert not torch.equal(poisoned.x, batch.x)
        # Sums over padding and over zeros differ only in their order.
        assert torch.allclose(runner.step(poisoned), clean.step(batch), rtol=1e-5), step
        real = batch.graph_mask
        one, other = runner.eval_step(poisoned).out, clean.eval_step(batch).out
        assert torch.allclose(one[real], other[real], atol=1e-5), step


@pytest.mark.sampled(2)
@pytest.mark.parametrize("made_first", ["scheduler", "recordings"])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_a_scheduler_costs_no_host_read_a_step(hiv, made_first, as_tensor):
    """A scheduler keeps the initial rate in the group, as a tensor if the rate is one; comparing it
    would make every step wait for the device."""

    class NoReads(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten._local_scalar_dense.default:
                raise HostRead("a value is read on the host")
            return func(*args, **(kwargs or {}))

    model = Net()
    twin = copy.deepcopy(model)
    rates = [torch.tensor(0.01) if as_tensor else 0.01 for _ in range(2)]
    optimizer, other = adam(model, rates[0]), adam(twin, rates[1])
    twins_schedule = torch.optim.lr_scheduler.ExponentialLR(other, 0.5)
    eager = eager_of(twin, other)
    if made_first == "scheduler":
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        runner = runner_of(model, hiv, optimizer)
    else:
        runner = runner_of(model, hiv, optimizer)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    recorded = runner.steps.recorded
    for number, batch in enumerate(batches_of(hiv, 6)):
        if number == 4:  # by hand, as a number
            optimizer.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 0.003
        with NoReads():
            recorded._watched.before_replay()
        assert torch.allclose(runner.step(batch), eager.step(fixed(batch)), rtol=1e-6)
        schedule.step()
        twins_schedule.step()


def test_dropout_differs_from_step_to_step_and_repeats_with_the_seed(place, hiv):
    model = Net(dropout=0.5).to(place.device)
    optimizer = sgd(model, 0.0, fused=True)
    runner = runner_of(model, hiv, optimizer, recorder=place.recorder)
    batch = batches_of(hiv, 1)[0].to(place.device)
    torch.manual_seed(7)
    first = [float(runner.step(batch)) for _ in range(4)]
    torch.manual_seed(7)
    second = [float(runner.step(batch)) for _ in range(4)]
    assert len(set(first)) == 4
    assert first == second


def test_gradients_belong_to_the_bucket_that_ran(hiv):
    """Scope forward_backward: after each replay, ``grad`` is that bucket's, whatever ran before."""
    model = Net()
    twin = copy.deepcopy(model)
    optimizer = sgd(model, 0.0)
    runner = runner_of(model, hiv, optimizer, scope="forward_backward")
    eager = eager_of(twin, sgd(twin, 0.0))
    for batch in batches_of(hiv, 6):
        runner.step(batch)
        eager.step(fixed(batch))
        assert_same_gradients(model, twin)


def test_closing_frees_everything_and_warmup_starts_anew(hiv):
    runner = runner_of(Net(), hiv)
    batch = batches_of(hiv, 1)[0]
    runner.step(batch)
    runner.close()
    assert all(parameter.grad is None for parameter in runner.model.parameters())
    assert [bucket.recordings for bucket in runner.report().buckets] == [0, 0]
    runner.warmup(hiv).step(batch)


def test_pointers_that_a_model_does_not_read_are_left_out(hiv):
    runner, (plain,) = runner_of(Net(), hiv), batches_of(hiv, 1)
    pointed = sg.StaticBatch.of(hiv, range(30), plain.capacity, pointers=True)
    assert "row_ptr" in pointed
    assert torch.equal(runner.eval_step(plain).out, runner.eval_step(pointed).out)
