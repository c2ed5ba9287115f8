"""What a loop does to its model between steps: a hook, a new layer, a new block.

Compiled steps refuse what they would leave out; eager steps follow, over real rows only.
"""

from __future__ import annotations

import pytest
import torch
from support.plain_epochs import GRAPHS, PLAN, STORE, D, Net, equal, made, sgd, squared
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import BatchNorm

import staticgraph as sg
from staticgraph.nn.newcomers import Newcomers


class Growing(Net):
    """Norms that a loop adds run after the convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.ModuleList()

    def forward(self, x, edge_index, batch, num_graphs):
        h = self.conv(x, edge_index)
        for norm in self.more:
            h = norm(h)
        return self.head(torch.zeros(num_graphs, 8, dtype=D).index_add(0, batch, h))


def plain_step(model, optimizer, ids):
    batch = Batch.from_data_list([GRAPHS[i] for i in ids])
    optimizer.zero_grad()
    loss = squared(model(batch.x, batch.edge_index, batch.batch, len(ids)), batch).mean()
    loss.backward()
    optimizer.step()
    return loss


def grown(cls, change, mode="eager", optimizer_of=sgd):
    """Train a runner and plain PyG with the same change after each step, and compare them."""
    torch.manual_seed(0)
    ours, theirs = cls().to(D), cls().to(D)
    theirs.load_state_dict(ours.state_dict())
    first, second = optimizer_of(ours), optimizer_of(theirs)
    runner = sg.StaticGraphRunner(ours, PLAN, mode, loss=squared, optimizer=first)
    for number, batch in enumerate(runner.loader(STORE, indices=range(24))):
        ids = range(8 * number, 8 * number + 8)
        equal([runner.step(batch)], [plain_step(theirs, second, ids)])
        for model, optimizer in ((ours, first), (theirs, second)):
            torch.manual_seed(number)
            change(model, optimizer, number)
    equal(ours.state_dict().values(), theirs.state_dict().values())
    return runner, ours, theirs


def test_a_norm_that_is_added_runs_over_real_rows():
    def change(model, optimizer, number):
        norm = (nn.BatchNorm1d(8), BatchNorm(8), nn.BatchNorm1d(8))[number].to(D)
        model.more.append(norm)
        optimizer.add_param_group({"params": list(norm.parameters())})

    runner, _, theirs = grown(Growing, change)
    batch = Batch.from_data_list(GRAPHS)
    out = theirs.eval()(batch.x, batch.edge_index, batch.batch, len(GRAPHS))
    equal([runner.predict(GRAPHS)], [out])


@pytest.mark.parametrize("mode", ["eager", "default", "fused"])
def test_settings_of_the_optimizer_are_followed(mode):
    """As ``OneCycleLR`` cycles the momentum; recorded steps refuse it."""

    def change(model, optimizer, number):
        group = optimizer.param_groups[0]
        group["momentum"], group["weight_decay"] = 0.8 - 0.2 * number, 0.1 * (number + 1)

    def with_momentum(model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    grown(Net, change, mode, with_momentum)


def test_a_norm_that_is_exchanged_runs_over_real_rows():
    def change(model, optimizer, number):
        model.conv.nn[1] = nn.BatchNorm1d(8).to(D)
        optimizer.param_groups[0]["params"] = list(model.parameters())
        optimizer.state.clear()

    grown(Net, change)


def test_a_layer_that_padding_reaches_is_found_when_it_comes():
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    def change(model, optimizer, number):
        model.more.append(Centred())

    with pytest.raises(sg.PaddingLeaks, match=r"more\.0.*Centred"):
        grown(Growing, change)


def test_newcomers_are_told_of_wherever_they_come():
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1)))
    newcomers = Newcomers(model)
    nn.Sequential(nn.Linear(1, 1))
    assert not newcomers.came
    model[0][0] = nn.Linear(1, 1)
    assert newcomers.came
    assert not newcomers.seen()  # of the same kind, at the same place
    model[0].append(nn.ReLU())
    assert newcomers.came
    assert newcomers.seen()
    assert not newcomers.came
    model[0][1] = nn.Sequential()  # a new module is watched too
    newcomers.seen()
    model[0][1].append(nn.ReLU())
    assert newcomers.came


HOOKS = {
    "a layer's": lambda m: m.head.register_forward_hook(lambda layer, given, out: out * 2),
    "before a layer": lambda m: m.head.register_forward_pre_hook(lambda layer, given: None),
    "the model's": lambda m: m.register_forward_hook(lambda layer, given, out: out * 2),
    "backward": lambda m: m.head.register_full_backward_hook(lambda layer, given, out: None),
    "messages": lambda m: m.conv.register_message_forward_hook(lambda layer, given, out: out * 2),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_comes_after_the_first_step_is_not_left_out(name):
    model = made()
    runner = sg.StaticGraphRunner(model, PLAN, "fused", loss=squared, optimizer=sgd(model))
    batches = iter(runner.loader(STORE, indices=range(24)))
    runner.step(next(batches))
    handle = HOOKS[name](model)
    with pytest.raises(sg.NotStatic):
        runner.step(next(batches))
    handle.remove()
    runner.step(next(batches))


@pytest.mark.parametrize("name", ["a layer's", "messages"])
def test_an_eager_step_follows_a_hook(name):
    ours, theirs = made(), made()
    first, second = sgd(ours), sgd(theirs)
    runner = sg.StaticGraphRunner(ours, PLAN, "eager", loss=squared, optimizer=first)
    for number, batch in enumerate(runner.loader(STORE, indices=range(24))):
        ids = range(8 * number, 8 * number + 8)
        equal([runner.step(batch)], [plain_step(theirs, second, ids)])
        HOOKS[name](ours), HOOKS[name](theirs)


@pytest.mark.parametrize("name", ["a layer's", "the model's", "before a layer"])
def test_a_hook_that_goes_after_the_first_step_is_not_heard_on(name):
    model = made()
    handle = HOOKS[name](model)
    runner = sg.StaticGraphRunner(model, PLAN, "fused", loss=squared, optimizer=sgd(model))
    batches = iter(runner.loader(STORE, indices=range(24)))
    runner.step(next(batches))
    HOOKS[name](made())  # a hook of another model
    runner.step(next(batches))
    handle.remove()
    with pytest.raises(sg.NotStatic, match="came or went since its steps were compiled"):
        runner.step(next(batches))
