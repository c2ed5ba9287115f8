"""Recordings are made, and replay equals eager: on a GPU, and with the same bodies on the CPU."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from support.alike import assert_same_state, sgd
from support.gine_net import bce
from support.molecule_steps import Molecules
from support.runners import made_runner

import staticgraph as sg
from staticgraph.steps.compilation.graph_trees import recorded_graphs, skipped_recordings

TWO = [(930, 2000, 33), (1400, 3000, 34)]


def model_of(place, hiv, gps):
    """A small model on the CPU, which rehearses what is recorded and how, not the arithmetic."""
    torch.manual_seed(0)
    size = {"hidden": 32} if place.cuda else {"hidden": 8, "layers": 1}
    return Molecules(hiv, gps, **size).to(place.device)


def runner_of(place, model, plan, mode, **options):
    optimizer = sgd(model, 1e-2, fused=True)
    options = {"recorder": place.recorder, **options}
    return made_runner(model, plan, mode=mode, loss=bce, optimizer=optimizer, **options)


def batches_of(place, hiv, plan, count):
    """Batches of the buckets in turn: A, B, A, ..."""
    buckets = len(plan.capacities)
    return [
        sg.StaticBatch.of(
            hiv, range(32 * i, 32 * i + 32), plan.capacities[i % buckets], i % buckets
        ).to(place.device)
        for i in range(count)
    ]


def buckets_of(place):
    """Two buckets; on the CPU one of them by default, both with ``EVERY_CASE=1``."""
    return TWO if place.cuda or os.environ.get("EVERY_CASE") else TWO[:1]


def steps_of(place):
    """The number of steps; on the CPU, a few per bucket show what twenty do."""
    return 20 if place.cuda else 4


def test_batches_of_ones_own_loader_replay(place, hiv):
    """A plan for a list of graphs, a bare warm-up and a padder, as the README has them."""
    graphs = hiv[:128]
    plan = sg.plan_stream(graphs, batch_size=32, buckets=2)
    model = model_of(place, hiv, gps=False)
    runner = runner_of(place, model, plan, "cuda-graph").warmup()
    padder = sg.Padder(plan)
    for first in range(0, 128, 32):
        batch = padder(graphs[first : first + 32])
        eager = runner.eager_forward(batch.to(place.device))
        assert torch.allclose(runner.eval_step(batch).out, eager, rtol=1e-4, atol=1e-5)
        runner.step(batch)
    assert sum(runner.report().replays.values()) == 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gps", [False, True], ids=["gine", "gps"])
def test_reduce_overhead_records_and_replays_like_eager(place, hiv, gps):
    """Twenty steps over two buckets in turn; graphs are counted, none is skipped or made later.

    On the CPU, GPS has one bucket by default, since tracing it for another is most of the time.
    """
    plan = sg.BucketPlan.of(buckets_of(place) if gps else TWO, batch_size=32)
    model = model_of(place, hiv, gps)
    twin = copy.deepcopy(model)
    skipped, before = skipped_recordings(), recorded_graphs(torch.device(place.device))
    recorded = runner_of(place, model, plan, "reduce-overhead").warmup(hiv)
    eager = runner_of(place, twin, plan, "eager")
    after_warmup = recorded_graphs(torch.device(place.device))
    if place.cuda:
        assert after_warmup >= 4, "a forward and a backward for each of two buckets"
    assert skipped_recordings() == skipped
    counted = sum(bucket.recordings for bucket in recorded.report().buckets)
    assert counted == after_warmup - before
    assert all(bucket.late_compiles == 0 for bucket in recorded.report().buckets)
    for batch in batches_of(place, hiv, plan, steps_of(place)):
        ours, theirs = float(recorded.step(batch)), float(eager.step(batch))
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert_same_state(model, twin, rtol=0.01, atol=0.001)
    assert recorded_graphs(torch.device(place.device)) == after_warmup, "a step recorded again"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("gps", [False, True], ids=["gine", "gps"])
@pytest.mark.parametrize("scope", ["step", "forward_backward"])
def test_cuda_graph_replays_like_eager(place, hiv, gps, scope):
    """This library's recorder: twenty steps over two buckets, then evaluation; one launch each."""
    plan = sg.BucketPlan.of(TWO, batch_size=32)
    model = model_of(place, hiv, gps)
    twin = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    recorded = runner_of(place, model, plan, "cuda-graph", scope=scope).warmup(hiv)
    assert_same_state(model, before)
    eager = runner_of(place, twin, plan, "eager")
    batches = batches_of(place, hiv, plan, steps_of(place))
    for batch in batches:
        ours, theirs = float(recorded.step(batch)), float(eager.step(batch))
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert_same_state(model, twin, rtol=0.01, atol=0.001)
    one, other = recorded.eval_step(batches[0]), eager.eval_step(batches[0])
    assert torch.allclose(one.out, other.out, rtol=1e-2, atol=1e-3)
    assert [bucket.recordings for bucket in recorded.report().buckets] == [2, 2]
    if scope == "step" and place.cuda:
        launches, graphs = launches_of(lambda: recorded.step(batches[0]))
        assert graphs == 1
        assert launches <= 3, "more than the copy of a batch and of the loss beside the graph"


def launches_of(call):
    """The number of kernel launches and of graph launches in a profile."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        call()
        torch.cuda.synchronize()
    counts = {event.key: event.count for event in profiled.key_averages()}
    kernels = sum(count for key, count in counts.items() if "LaunchKernel" in key)
    return kernels, counts.get("cudaGraphLaunch", 0)


def test_closing_gives_the_memory_back(place, hiv):
    """A teardown leaves no more memory held than the one before; the first leaves what a process
    keeps for good, such as compiled code and library workspaces."""
    plan = sg.BucketPlan.of(buckets_of(place), batch_size=32)
    runner = runner_of(place, model_of(place, hiv, gps=False), plan, "cuda-graph")
    open_, closed = [], []
    for _ in range(3):
        runner.warmup(hiv)
        open_.append(place.held())
        runner.close()
        closed.append(place.held())
    assert min(open_[1:]) > max(closed)
    assert closed[2] <= closed[1]


@pytest.mark.parametrize("mode", ["reduce-overhead", "cuda-graph"])
def test_held_outputs_keep_their_values(place, hiv, mode):
    plan = sg.BucketPlan.of(TWO[:1], batch_size=32)
    model = model_of(place, hiv, gps=False)
    runner = runner_of(place, model, plan, mode).warmup(hiv)
    batches = batches_of(place, hiv, plan, 3)
    losses = [runner.step(batch) for batch in batches]
    values = [float(loss) for loss in losses]
    assert len(set(values)) == 3
    runner.step(batches[0])
    assert [float(loss) for loss in losses] == values


def test_loader_copies_once_and_in_order(place, hiv):
    """Batches on the device equal those on the host, while steps run on the compute stream."""
    plan = sg.plan_buckets(hiv, batch_size=64)
    chosen = hiv.splits["train"][:2048]
    for workers in (0, 2):
        device = sg.StaticLoader(
            hiv, plan, indices=chosen, shuffle=True, device=place.device, num_workers=workers
        )
        host = sg.StaticLoader(hiv, plan, indices=chosen, shuffle=True)
        busy = torch.randn((2048, 2048) if place.cuda else (8, 8), device=place.device)
        for one, other in zip(device, host, strict=True):
            busy = busy @ busy
            for name, value in one.tensors().items():
                assert torch.equal(value.cpu(), other.tensors()[name]), name
