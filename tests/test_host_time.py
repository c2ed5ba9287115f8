"""Python's work around a replay: few calls, and no more for a deep model than for a shallow one.

Calls are counted, not timed, since a count is the same on any machine.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.alike import sgd
from support.arena import ArenaRecorder
from support.gine_net import CAPACITIES, Net, adam, batches_of, bce
from support.runners import made_runner
from torch import nn

import staticgraph as sg
from bench.first_look import calls_of
from staticgraph import models
from staticgraph.recording.graph_recorder import Recorded

# The most layers of each model.
MODELS = {"gine": 5, "gps": 10}
MOST = 36
# Files that one step enters.
MOST_EAGER, MOST_REPLAYED = 16, 8


class NothingRecorded(ArenaRecorder):
    """Its replays do nothing, so that a step is only the work around a recording."""

    def record(self, body):
        return Recorded(lambda: None, body())


@pytest.fixture(scope="module")
def plan(esol):
    return sg.plan_buckets(esol, batch_size=32)


def steady(runner, batch) -> int:
    """Calls in one replayed step, after the first of its epoch, that does not check the model; of
    three consecutive steps at least one does not."""
    runner.step(batch)
    runner.step(batch)
    return min(len(calls_of(partial(runner.step, batch))) for _ in range(3))


@pytest.mark.parametrize("name", MODELS)
def test_a_replay_is_few_calls_for_any_number_of_layers(name, esol, plan):
    """For batches from a host slot and from ids; no call walks over modules and parameters."""
    found = set()
    for layers in (1, MODELS[name]):
        moved = esol.to("cpu")
        model = models.build(name, esol, hidden=16, layers=layers)
        runner = recorded(model, plan, NothingRecorded).warmup(moved)
        assert len(list(runner.model.parameters())) > 10 * layers / 2
        batches = [next(iter(sg.StaticLoader(store, plan))) for store in (esol, moved)]
        counts = tuple(steady(runner, batch) for batch in (*batches, batches[0].clone()))
        assert runner.report().fallbacks == ()
        found.add(counts)
    (counts,) = found
    assert max(counts) <= MOST, counts


def test_a_step_goes_through_few_files(hiv):
    """Counted after the first steps of a bucket, where nothing is looked at any longer."""
    model = Net()
    eager = made_runner(model, CAPACITIES, "eager", loss=bce, optimizer=adam(model))
    for runner, most in ((eager, MOST_EAGER), (net_runner(hiv), MOST_REPLAYED)):
        batch = next(iter(runner.loader(hiv, indices=range(30))))
        for _ in range(9):
            runner.step(batch)
        called = [set(calls_of(partial(runner.step, batch))) for _ in range(3)]
        files = min(({f for f in some if f.startswith("staticgraph.")} for some in called), key=len)
        assert len(files) <= most, sorted(files)


def recorded(model, plan, recorder, optimizer=adam, **options):
    return made_runner(
        model, plan, "cuda-graph", loss=bce, optimizer=optimizer(model), recorder=recorder,
        check_padding=False,  # some of these recorders compute nothing
        **options,
    )  # fmt: skip


def net_runner(hiv, recorder=ArenaRecorder, **options):
    return recorded(Net(), CAPACITIES, recorder, **options).warmup(hiv)


def test_gradients_taken_away_are_given_again(hiv):
    """They are reassigned only where they are no longer the recording's tensors."""
    runner = net_runner(hiv)
    first, second = batches_of(hiv, 2)
    runner.step(first)
    grads = [p.grad for p in runner.model.parameters()]

    def as_recorded():
        return [p.grad is g for p, g in zip(runner.model.parameters(), grads, strict=True)]

    runner.step(first)
    assert all(as_recorded())
    for taken in (
        lambda: runner.model.zero_grad(),
        lambda: runner.optimizer.zero_grad(),
        lambda: runner.step(second),
        lambda: runner.eager_step(second),
    ):
        taken()
        assert not any(as_recorded())
        runner.step(first)
        assert all(as_recorded())


def test_an_optimizer_outside_reads_each_gradient_whatever_was_done_to_it(hiv):
    """Otherwise a single gradient set to None would be skipped in every later update."""
    runner = net_runner(
        hiv,
        scope="forward_backward",
        optimizer=lambda model: sgd(model, 0.1),
    )
    batch = batches_of(hiv, 1)[0]
    runner.step(batch)
    head: nn.Linear = runner.model.head
    head.bias.grad = None
    before = head.bias.detach().clone()
    runner.step(batch)
    assert not torch.equal(before, head.bias)


def test_settings_of_equal_value_are_no_change_and_cost_one_comparison(hiv):
    runner = net_runner(hiv, recorder=NothingRecorded)
    batch = batches_of(hiv, 1)[0]
    usual = steady(runner, batch)
    for group in runner.optimizer.param_groups:
        group["betas"] = tuple(float(str(beta)) for beta in group["betas"])
    assert len(calls_of(partial(runner.step, batch))) > usual
    assert steady(runner, batch) == usual
    runner.optimizer.param_groups[0]["betas"] = (0.5, 0.999)
    with pytest.raises(sg.NotStatic, match=r"optimizer's betas changed"):
        runner.step(batch)
