"""A NaN or infinite loss is an error that names the graphs, without a host read in each step."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import assert_same_state, same, squared
from support.gine_net import adam
from support.graphs import drawn_graphs
from support.runners import made_runner
from torch import nn
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.errors import NonFiniteLoss
from staticgraph.steps.loss.finite_losses import FiniteLosses

CAPACITIES = [(20, 31, 4), (30, 41, 5)]


@pytest.fixture(scope="module")
def store():
    made = drawn_graphs([3] * 40, dtype=torch.float32, x=("node", 2), y=("graph",))
    made[7].x[1, 0] = torch.nan
    made[30].x[1, 0] = torch.inf
    return sg.GraphStore.from_pyg(made)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 1)

    def forward(self, x, batch, batch_size):
        return global_add_pool(self.lin(x), batch, batch_size).squeeze(1)


def runner_of(store, mode="eager", loss=squared, **options):
    torch.manual_seed(0)
    model = Net()
    return made_runner(
        model,
        CAPACITIES,
        mode,
        loss=loss,
        optimizer=adam(model, torch.tensor(1e-3)),
        **options,
    ).warmup(store, phases=("step",))


def batch_of(store, first, bucket=0):
    return sg.StaticBatch.of(store, range(first, first + 3), CAPACITIES[bucket], bucket)


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_on_the_cpu_the_update_is_left_out(store, mode):
    runner = runner_of(store, mode)
    runner.step(batch_of(store, 0))
    before = copy.deepcopy(runner.model.state_dict())
    with pytest.raises(NonFiniteLoss, match="graphs 6, 7, 8 is nan; its update was left") as caught:
        runner.step(batch_of(store, 6))
    assert caught.value.graphs == (6, 7, 8)
    assert_same_state(runner.model, before)
    runner.step(batch_of(store, 9))  # training can go on


def test_a_gradient_that_was_not_finite_is_named_as_the_cause(store):
    runner = runner_of(store, loss=lambda out, batch: squared(out, batch) + (0 * out).sqrt())
    runner.step(batch_of(store, 0))  # its loss is finite
    with pytest.raises(NonFiniteLoss, match=r"parameter lin.weight is not finite before it: an ea"):
        runner.step(batch_of(store, 3))


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_it_can_be_turned_off(store, mode):
    runner = runner_of(store, mode, check_finite=0)
    assert bool(runner.step(batch_of(store, 6)).isnan())
    runner.check_finite()


def test_a_recording_keeps_the_first_graphs_and_is_read_rarely(store):
    """The bucket's first batch with such a loss is named. Its successors' losses are not finite
    either, since it ruined the parameters."""
    runner = runner_of(store, "cuda-graph", check_finite=4)
    runner.step(batch_of(store, 0))
    runner.step(batch_of(store, 6))
    runner.step(batch_of(store, 9))
    with pytest.raises(NonFiniteLoss, match="graphs 6, 7, 8 was not finite") as caught:
        runner.step(batch_of(store, 12))
    assert caught.value.graphs == (6, 7, 8)
    runner.check_finite()  # reported once


def test_the_end_of_an_epoch_reads_what_is_left(store):
    runner = runner_of(store, "cuda-graph")
    runner.step(batch_of(store, 0))
    runner.check_finite()
    runner.step(batch_of(store, 30, 1))  # an infinite feature, in the other bucket
    with pytest.raises(NonFiniteLoss, match="graphs 30, 31, 32 was not finite"):
        runner.check_finite()


def test_a_recording_whose_check_is_off_notes_nothing(store):
    runner = runner_of(store, "cuda-graph", check_finite=0)
    runner.step(batch_of(store, 6))
    runner.check_finite()
    assert not runner.steps.finite._flags


def test_warming_up_leaves_no_flag(store):
    """The loss is not finite over padding alone, and no real batch is padding alone."""
    model = Net()
    runner = made_runner(
        model,
        CAPACITIES[:1],
        "cuda-graph",
        loss=lambda out, batch: squared(out, batch) / batch.num_real_graphs,
        optimizer=adam(model, torch.tensor(1e-3)),
    ).warmup(store, phases=("step",))
    runner.step(batch_of(store, 0))
    runner.check_finite()


def test_between_checks_nothing_is_read_on_the_host(store, monkeypatch):
    """On a device that is ahead of the host a read waits; here a fake device detects reads."""
    finite = FiniteLosses(
        [sg.Capacity.of(c) for c in CAPACITIES], torch.device("cpu"), 5, nn.Identity()
    )
    monkeypatch.setattr(finite, "_device", torch.device("meta"))
    finite.prepare(0)
    monkeypatch.setattr(finite, "_device", torch.device("cuda"))
    loss = torch.tensor(1.0, device="meta")  # a meta tensor has no value to read
    batch = batch_of(store, 0)
    batch = batch.replace(**{name: value.to("meta") for name, value in batch})
    for _ in range(4):
        finite.before_update(loss, batch)
        finite.count()
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        finite.count()  # the fifth call reads


class Counting(nn.Module):
    """Writes to all that a step may write to before its update."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lin = nn.BatchNorm1d(2), nn.Linear(2, 1)
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("bound", torch.zeros(2))
        self.seen = 0

    def forward(self, x, batch, batch_size):
        h = self.norm(x)
        self.written.lerp_(h.detach()[0], 0.1)
        if not torch.compiler.is_compiling():
            self.bound = self.bound + h.detach()[0]
            self.seen += 1
        return global_add_pool(self.lin(h), batch, batch_size).squeeze(1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_a_step_happens_whole_or_not_at_all(store, mode):
    """Refused for its loss, or interrupted anywhere before its update."""
    model, centre, stop = Counting(), torch.zeros(1), {}

    def loss(out, batch):
        if mode == "eager":
            centre.lerp_(out.detach()[:1], 0.1)
            if "loss" in stop:
                raise KeyboardInterrupt
        return (out - batch.y - centre).square()

    runner = made_runner(
        model, CAPACITIES, mode, loss=loss, optimizer=adam(model, torch.tensor(1e-3))
    )
    runner.step(batch_of(store, 0))

    def state():
        values = [*model.state_dict().values(), centre, torch.tensor(model.seen)]
        return [value.clone() for value in values]

    def stopped(error):
        with pytest.raises(error):
            runner.step(batch_of(store, 6 if error is NonFiniteLoss else 9))
        assert same(state(), before)

    before, bound = state(), model.bound
    stopped(NonFiniteLoss)
    handle = model.lin.weight.register_hook(lambda gradient: 1 / 0)
    stopped(ZeroDivisionError)
    handle.remove()
    if mode == "eager":
        stop["loss"] = True
        stopped(KeyboardInterrupt)
        stop.clear()
    assert model.bound is bound
    runner.step(batch_of(store, 9))
    assert not torch.equal(model.written, before[0])
