"""Autocast around a runner's calls computes what it does around plain torch, in any form of loop; a
recorded or compiled step keeps the precision it was made in, and a mismatch is reported."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from support.alike import sgd, squared, update
from support.graphs import drawn_graphs
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.checking.comparison import Comparer
from staticgraph.checking.outcome import Tolerance
from staticgraph.steps.computation.model_setup import Subject

CAPACITY = (60, 80, 5)
HALF = torch.bfloat16
# At which the losses do not diverge, so that a step of wrong weights stays visible.
RATE = 0.003


def graphs() -> list[Data]:
    fields = {"x": ("node", 9), "y": ("graph", 1)}
    made = drawn_graphs((3 + i % 5 for i in range(24)), dtype=torch.float32, **fields)
    for i, graph in enumerate(made):
        graph.kind = torch.tensor([i % 3])
    return made


GRAPHS = graphs()
STORE = sg.GraphStore.from_pyg(GRAPHS)
IDS = [range(i, i + 4) for i in range(0, 24, 4)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(9, 16), nn.Linear(16, 1)

    def forward(self, x, batch, batch_size):
        return self.head(global_add_pool(torch.tanh(self.first(x)), batch, batch_size))


def batches():
    return [sg.StaticBatch.of(STORE, ids, CAPACITY) for ids in IDS]


def runner_of(mode="eager", autocast=None, on_miss="error"):
    return sgd_runner(Net(), [CAPACITY], mode, rate=RATE, autocast=autocast, on_miss=on_miss)


def around(enabled=True):
    return torch.autocast("cpu", dtype=HALF, enabled=enabled)


def plain_losses(precisions):
    """Losses of plain torch, with an autocast context around each forward and its loss."""
    model = Net()
    optimizer = sgd(model, RATE)
    found = []
    for ids, precision in zip(IDS, precisions, strict=True):
        batch = Batch.from_data_list([GRAPHS[i] for i in ids])
        with precision:
            loss = squared(model(batch.x, batch.batch, len(ids)), batch).mean()
        update(optimizer, loss)
        found.append(loss.item())
    return found


IN_HALF = plain_losses([around() for _ in IDS])
IN_SINGLE = plain_losses([nullcontext() for _ in IDS])


def near(found, expected):
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def own_step(runner, batch):
    loss = sg.masked_mean(squared(runner(batch), batch), batch)
    update(runner.optimizer, loss)
    return loss


def test_the_two_precisions_are_told_apart():
    assert max(abs(a - b) for a, b in zip(IN_HALF, IN_SINGLE, strict=True)) > 1e-3


@pytest.mark.parametrize("autocast", [None, HALF])
def test_one_autocast_around_a_whole_loop_sees_the_new_weights(autocast):
    runner = runner_of(autocast=autocast)
    with around():
        losses = [runner.step(batch).item() for batch in batches()]
    near(losses, IN_HALF)


@pytest.mark.parametrize("step", [sg.StaticGraphRunner.step, own_step])
def test_what_is_recorded_inside_an_autocast_reads_the_weights_as_they_are(step):
    runner = runner_of("cuda-graph")
    with around():
        runner.warmup(STORE, phases=("step", "forward"))
    losses = []
    for batch in batches():
        with around():
            losses.append(step(runner, batch).item())
    near(losses, IN_HALF)
    assert len(set(losses)) == len(losses)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("step", [sg.StaticGraphRunner.step, own_step])
def test_a_replay_in_another_precision_than_the_recording_is_refused(step, recorded):
    runner = runner_of("cuda-graph")
    with around(recorded):
        runner.warmup(STORE, phases=("step", "forward"))
    with around(not recorded), pytest.raises(sg.NotStatic, match=r"torch\.autocast .*autocast="):
        step(runner, batches()[0])
    with around(recorded):
        step(runner, batches()[0])


def test_a_replay_of_a_subject_with_a_precision_does_not_care_what_is_around():
    runner = runner_of("cuda-graph", HALF).warmup(STORE)
    near(losses_by_turns(runner), IN_HALF)
    assert "bucket 0 step bfloat16 (scope step)" in runner.report().replays


def losses_by_turns(runner):
    """Losses of an epoch of which every second step runs under autocast."""
    losses = []
    for number, batch in enumerate(batches()):
        with around(bool(number % 2)):
            losses.append(runner.step(batch).item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [None, HALF])
def test_a_captured_step_follows_an_autocast_that_comes_and_goes(autocast):
    runner = runner_of("fused", autocast)
    losses = losses_by_turns(runner)
    by_turns = plain_losses([around(bool(number % 2)) for number in range(len(IDS))])
    expected = torch.tensor(IN_HALF if autocast else by_turns)
    # In bfloat16 a different order of summation is visible.
    torch.testing.assert_close(torch.tensor(losses), expected, rtol=5e-3, atol=5e-3)
    assert len(runner.steps.compiled) == (1 if autocast else 2)


class Looked(Net):
    """Reads a table, in bfloat16 and without gradients, by its graphs' kinds."""

    def forward(self, x, batch, batch_size, kind):
        with torch.no_grad(), torch.autocast("cpu", HALF):
            shifts = self.head(torch.tanh(self.first(x[: len(kind)]))).index_select(0, kind)
        return super().forward(x, batch, batch_size) + shifts


def test_an_error_inside_a_captured_region_leaves_no_region_entered():
    runner = sg.StaticGraphRunner(Looked(), [CAPACITY], "fused")
    batch = batches()[0]
    runner.predict([GRAPHS[0]])
    runner.eval_step(batch)
    batch.kind[0] = 99
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        runner.eval_step(batch)
    with torch.enable_grad(), pytest.raises((IndexError, RuntimeError), match="out of range"):
        runner(batch)
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert torch.autocast_increment_nesting() == torch.autocast_decrement_nesting() + 1 == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("error::UserWarning")
def test_an_autocast_that_warmup_did_not_know_is_named():
    runner = runner_of("fused").warmup(STORE, phases=("eval",))
    batch = batches()[0]
    runner.eval_step(batch)
    with around(), pytest.warns(UserWarning, match=r"autocast=torch\.bfloat16 in place of"):
        runner.eval_step(batch)


def test_runs_under_an_autocast_are_compared_with_its_tolerance():
    comparer = Comparer(Subject(Net()))
    with around():
        assert comparer.tolerance == Tolerance.of(HALF)
    assert comparer.tolerance == Tolerance.of(torch.float32)


@pytest.mark.parametrize(
    ("given", "error"),
    [("bfloat16", TypeError), (True, TypeError), (torch.float32, ValueError)],
)
def test_another_autocast_is_refused_when_the_subject_is_made(given, error):
    with pytest.raises(error, match=r"give torch\.bfloat16 or torch\.float16"):
        Subject(Net(), autocast=given)


def test_a_loss_of_an_evaluation_is_in_the_precision_of_a_step():
    """A cross entropy is float32, as it is under autocast."""
    model = nn.Linear(9, 3)
    runner = sg.StaticGraphRunner(
        model,
        [CAPACITY],
        "eager",
        forward=lambda model, batch: global_add_pool(model(batch.x), batch.batch, batch.num_graphs),
        loss=lambda out, batch: F.cross_entropy(out, batch.kind, reduction="none"),
        autocast=HALF,
    )
    found = runner.eval_step(batches()[0]).loss
    batch = Batch.from_data_list([GRAPHS[i] for i in IDS[0]])
    with torch.no_grad(), around():
        out = global_add_pool(copy.deepcopy(model)(batch.x), batch.batch, 4)
        expected = F.cross_entropy(out, batch.kind)
    assert found is not None
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
