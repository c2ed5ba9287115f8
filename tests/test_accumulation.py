"""An update after several batches is the update with their mean gradient, however a batch runs;
what a step cannot take is refused by name."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from support.alike import assert_same_state, sgd
from support.gine_net import CAPACITIES, Net, adam, batches_of, bce, fixed
from support.runners import made_runner, sgd_runner
from torch.optim.swa_utils import AveragedModel

import staticgraph as sg
from staticgraph.steps.computation.model_setup import Subject


def by_hand(model, optimizer, batches, every, loss=bce, before=lambda number: None):
    """The gradient accumulation loop that everybody writes."""
    runner = sg.StaticGraphRunner(model, CAPACITIES, "eager")
    for number, batch in enumerate(batches):
        before(number)
        if number % every == 0:
            optimizer.zero_grad()
        (sg.masked_mean(loss(runner(batch), batch), batch) / every).backward()
        if number % every == every - 1:
            optimizer.step()


@pytest.mark.parametrize("way", ["eager", "cuda-graph"])
def test_it_is_the_loop_by_hand(hiv, way):
    """Ten batches of two buckets, one update per three batches: the tenth waits for two more."""
    model = Net()
    twin = copy.deepcopy(model)
    optimizers = [sgd(m, 0.1, momentum=0.9) for m in (model, twin)]
    batches = [fixed(batch) for batch in batches_of(hiv, 10)]
    runner = made_runner(
        model,
        CAPACITIES,
        way,
        loss=bce,
        optimizer=optimizers[0],
        accumulate=3,
        check_padding=False,
    )
    if way == "cuda-graph":
        runner.warmup(hiv)
    for batch in batches[:9]:
        runner.step(batch)
    before = copy.deepcopy(model.state_dict())
    runner.step(batches[9])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), "no update before the third"
    by_hand(twin, optimizers[1], batches, 3)
    assert_same_state(model, twin, rtol=1e-5, atol=1e-6)


def test_what_is_held_survives_verify_and_warmup(hiv):
    model = Net()
    twin = copy.deepcopy(model)
    first, second = (fixed(batch) for batch in batches_of(hiv, 2))
    options = {"rate": 0.1, "accumulate": 2, "check_padding": False}
    runner = sgd_runner(model, CAPACITIES, "cuda-graph", bce, **options).warmup(hiv)
    runner.step(first)
    assert runner.verify(second).passed
    runner.warmup(hiv)
    runner.step(second)
    by_hand(twin, sgd(twin, 0.1), [first, second], 2)
    assert_same_state(model, twin, rtol=1e-5, atol=1e-6)


def test_clipping_sees_the_mean(hiv):
    model = Net()
    batches = batches_of(hiv, 2)
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    runner = sgd_runner(model, CAPACITIES, loss=bce, rate=1.0, clip_norm=1e-3, accumulate=2)
    for batch in batches:
        runner.step(batch)
    after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"accumulate": 0}, "accumulate=0: give a whole number of at least 1"),
        ({"optimizer": "list"}, r"optimizer= is a list of 2, .* parameter groups .* runner\(batch"),
        ({"optimizer": "scaler"}, r"GradScaler reads on the host.* autocast=torch\.bfloat16"),
        ({"optimizer": "other"}, r"optimizer= is a object, not a torch\.optim\.Optimizer"),
        (
            {"model": "averaged"},
            r"AveragedModel.* averaged\.update_parameters.* averaged\.module",
        ),
    ],
)
def test_what_a_step_cannot_take_is_refused_by_name(given, says):
    model = Net()
    made = {
        "list": [adam(model), adam(model)],
        "scaler": torch.amp.GradScaler("cpu"),
        "other": object(),
        "averaged": AveragedModel(model),
    }
    given = {name: made.get(value, value) for name, value in given.items()}
    with pytest.raises((TypeError, ValueError), match=says):
        sg.StaticGraphRunner(Subject(**{"model": model, "loss": bce, **given}), CAPACITIES)


@pytest.mark.parametrize("every", [1, 2])
def test_parameters_that_come_later_have_the_mean_too(hiv, every):
    """A weight of the loss and a layer of the model are given to the optimizer in mid-training."""
    model = Net()
    twin = copy.deepcopy(model)
    batches = [fixed(batch) for batch in batches_of(hiv, 6)]
    scale, own = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = sgd(twin, 0.1)

    def loss(weight):
        return lambda out, batch: bce(out, batch) * (-weight).exp() + weight

    def grow(net, optimizer, weight, number):
        if number == 2:
            net.head = torch.nn.Sequential(net.head, torch.nn.Linear(1, 1))
            torch.nn.init.constant_(net.head[1].weight, 2.0)
            torch.nn.init.zeros_(net.head[1].bias)
            optimizer.add_param_group({"params": [*net.head[1].parameters(), weight]})

    options = {"rate": 0.1, "accumulate": every, "check_padding": False}
    runner = sgd_runner(model, CAPACITIES, loss=loss(scale), **options)
    for number, batch in enumerate(batches):
        grow(model, runner.optimizer, scale, number)
        runner.step(batch)
    by_hand(twin, optimizer, batches, every, loss(own), partial(grow, twin, optimizer, own))
    assert float(own) != 0
    assert torch.allclose(scale, own, rtol=1e-5)
    assert_same_state(model, twin, rtol=1e-5, atol=1e-6)
