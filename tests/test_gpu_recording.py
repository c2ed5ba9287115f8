"""What a recorded step does on a GPU, one thing at a time; and the same bodies on the CPU."""

from __future__ import annotations

import copy
import threading
import time
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from support.alike import update
from support.gine_net import CAPACITIES, Net, bce
from support.runners import made_runner

import staticgraph as sg

PLAN = sg.BucketPlan.of(CAPACITIES[:1], batch_size=30)
CLOSE = {"rel": 1e-4, "abs": 1e-5}


def adam(model):
    rate = torch.tensor(1e-2, device=model.head.weight.device)
    # The gradient of a bias before a norm is noise; with the usual eps it becomes whole steps.
    return torch.optim.Adam(model.parameters(), lr=rate, eps=1e-4, fused=True, capturable=True)


def batches_of(place, hiv, count):
    starts = range(0, 30 * count, 30)
    capacity = PLAN.capacities[0]
    batches = [sg.StaticBatch.of(hiv, range(i, i + 30), capacity, 0) for i in starts]
    return [batch.to(place.device) for batch in batches]


def pair_of(place, **options):
    """A recorded runner, not yet warmed up, and an eager one, of the same weights."""
    torch.manual_seed(0)
    model = Net().to(place.device)
    twin = copy.deepcopy(model)
    return [
        made_runner(m, PLAN, mode, loss=bce, optimizer=adam(m), recorder=r, **options)
        for m, mode, r in ((model, "cuda-graph", place.recorder), (twin, "eager", None))
    ]


def assert_follow(runners, batches):
    """Losses and then parameters are eager's, and each step was one replay."""
    recorded, eager = runners
    before = sum(recorded.report().replays.values())
    for batch in batches:
        ours, theirs = float(recorded.step(batch)), float(eager.step(batch))
        assert ours == pytest.approx(theirs, **CLOSE)
    parameters = [list(runner.model.parameters()) for runner in runners]
    torch.testing.assert_close(*parameters, rtol=1e-2, atol=1e-3)
    report = recorded.report()
    assert sum(report.replays.values()) - before == len(batches)
    assert report.fallbacks == ()


def test_all_works_after_a_capture_that_failed(place, hiv):
    device = torch.device(place.device)
    values = torch.ones(8, device=device)

    def refused():
        values.add_(1)
        float(values.sum())

    recorder = sg.Recording(recorder=place.recorder).recorder_on(device)
    with pytest.raises(RuntimeError, match="operation not permitted when"):
        recorder.record(refused)
    assert F.dropout(values, 0.5).shape == (8,)
    runners = pair_of(place)
    runners[0].warmup(hiv)
    assert_follow(runners, batches_of(place, hiv, 4))


def test_a_loop_of_ones_own_replays_forward_and_backward(place, hiv):
    recorded, eager = pair_of(place)
    recorded.warmup(hiv, phases=["forward"])
    for batch in batches_of(place, hiv, 4):
        losses = []
        for runner in (recorded, eager):
            loss = sg.masked_mean(bce(runner(batch), batch), batch)
            update(runner.optimizer, loss)
            losses.append(float(loss.detach()))
        assert losses[0] == pytest.approx(losses[1], **CLOSE)
    assert sum(recorded.report().replays.values()) == 8


def test_batches_and_replays_on_different_streams(place, hiv):
    runners, losses = pair_of(place), []
    runners[0].warmup(hiv)
    side = torch.cuda.Stream(priority=-1) if place.cuda else None
    for number, batch in enumerate(batches_of(place, hiv, 8)):
        if side is not None and number % 2:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side) if side is not None and number % 2 else nullcontext():
            losses.append(runners[0].step(batch))
    if side is not None:
        torch.cuda.current_stream().wait_stream(side)
    expected = [float(runners[1].step(batch)) for batch in batches_of(place, hiv, 8)]
    assert [float(loss) for loss in losses] == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize("options", [{"clip_norm": 0.1}, {"accumulate": 2}], ids=str)
def test_clipping_accumulation_and_a_scheduler_are_in_the_step(place, hiv, options):
    runners = pair_of(place, **options)
    runners[0].warmup(hiv)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(r.optimizer, 0.5) for r in runners]
    every = options.get("accumulate", 1)  # a scheduler steps after the optimizer
    for batches in zip(*[iter(batches_of(place, hiv, 6))] * every, strict=True):
        assert_follow(runners, batches)
        for schedule in schedules:
            schedule.step()


def test_a_loader_works_while_steps_are_recorded(place, hiv):
    loader = sg.StaticLoader(
        hiv, PLAN, indices=range(300), exact=False, device=place.device, num_workers=2
    )
    recorded, epochs = threading.Event(), []

    def load():
        while not (recorded.is_set() and epochs):
            epochs.append(sum(int(batch.graph_mask.sum()) for batch in loader))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        runners = pair_of(place)
        runners[0].warmup(hiv)
    finally:
        recorded.set()
        thread.join()
    assert set(epochs) == {300}
    assert_follow(runners, batches_of(place, hiv, 4))


def test_a_run_from_ids_is_one_replay_a_step(place, hiv):
    """Where the data set is on the device, making a batch is in the recording of its step."""
    recorded, eager = pair_of(place)
    moved = hiv.to(place.device)
    recorded.warmup(moved)
    given = {"indices": range(300), "shuffle": True, "device": place.device}
    loaders = [sg.StaticLoader(source, PLAN, **given) for source in (moved, hiv)]
    started = time.perf_counter()
    losses = [recorded.step(batch) for batch in loaders[0]]
    values = [float(loss) for loss in losses]
    print(f"{len(losses)} steps from ids in {time.perf_counter() - started:.3f} s")
    assert values == pytest.approx([float(eager.step(b)) for b in loaders[1]], **CLOSE)
    assert sum(recorded.report().replays.values()) == len(losses)
