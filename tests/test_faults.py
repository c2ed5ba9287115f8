"""Whatever call fails, or whenever the process is killed: nothing is lost or half-written, nobody
waits, and the next try succeeds.

Each test runs one operation with a fault at the first call of some functions, at the second, and so
on until it runs through (:mod:`support.faults`).
"""

from __future__ import annotations

import gc
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support import gine_net, ranked_net, served_graphs
from support.alike import adam, real_ids, squared
from support.arena import ArenaRecorder
from support.faults import OPERATIONS, WRITES, every_fault, every_kill, no_memory, no_thread
from support.ranks import RankFailed, on_ranks
from support.recorded_net import runner_of
from support.sampled import in_turn
from support.saved_kinds import FOLDERS, KINDS, Parts

import staticgraph as sg
from staticgraph.batches.loading import loader as loading
from staticgraph.serving import server
from staticgraph.serving.server import Server
from staticgraph.serving.statistics import Counts

EVERY_CASE = "EVERY_CASE" in os.environ

# ---------------------------------------------------------------------- saving


def failures_of(action, kills: bool, kind: type):
    """Folders are written in many calls: by default not all of them fail."""
    step = 1 if EVERY_CASE else 13 if kind is Parts else 3 if kind in FOLDERS else 1
    if kills:
        return (None for _ in every_kill(action, step))
    return every_fault(action, [*WRITES, (np, "save")], step=step)


CASES = [
    pytest.param(
        kind, kills, id=f"{kind.__name__}-{'is killed' if kills else 'raises'}",
        marks=[pytest.mark.slow] if kind in FOLDERS else [],
    )
    for kind, kills in in_turn(KINDS, (False, True))
]  # fmt: skip


def names_in(folder: Path, hidden: bool) -> list[str]:
    """Without hidden names, of scratch that a fault in a clean-up leaves until the process ends."""
    return [path.name for path in folder.iterdir() if hidden or not path.name.startswith(".")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "kills"),
    [*CASES, pytest.param(Parts, False, id="Parts-raises", marks=pytest.mark.slow)],
)
def test_saving_leaves_the_old_or_the_new(kind, kills, tmp_path):
    path = tmp_path / kind.name
    kind.write(path, 5)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an old one was put back
        for raised in failures_of(lambda: kind.write(path, 7), kills, kind):
            assert raised is None or isinstance(raised, OSError)
            found.append(kind.read(path))
            if kind is Parts and found[-1] == 5:
                kind.write(path, 7)  # goes on from what was committed
                assert kind.read(path) == 7
            kind.write(path, 5)
            assert kind.read(path) == 5
            assert names_in(tmp_path, kills) == [kind.name], "scratch piles up"
    assert found[-1] == 7
    assert set(found) == {5, 7}
    assert len(found) > 3


@pytest.mark.parametrize(("kind", "kills"), CASES)
def test_saving_for_the_first_time_leaves_nothing_or_all(kind, kills, tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    path = folder / kind.name
    for number, _ in enumerate(failures_of(lambda: kind.write(path, 7), kills, kind)):
        if path.exists():
            assert kind.read(path) == 7
        kind.write(path, 5)
        assert names_in(folder, kills) == [kind.name]
        folder.rename(tmp_path / f"done-{number}")
        folder.mkdir()


# ---------------------------------------------------------------------- a runner alone


def state_of(runner) -> list[torch.Tensor]:
    """Copies of what a run keeps from step to step: model, optimizer and random state."""
    state = [*runner.model.state_dict().values(), torch.get_rng_state()]
    for entries in runner.optimizer.state.values():
        state += [value for value in entries.values() if isinstance(value, torch.Tensor)]
    return [value.clone() for value in state]


def same(state: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(state) == len(other) and all(map(torch.equal, state, other))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "step"),
    [([(ArenaRecorder, "warm"), (ArenaRecorder, "record")], 1), ([OPERATIONS], 797)],
    ids=["capture", "memory"],
)
def test_a_warm_up_that_fails_changes_nothing(places, step, hiv):
    runner, expected = _stepped_once(hiv), _stepped_once(hiv)
    before, count = state_of(runner), 0
    for raised in every_fault(lambda: runner.warmup(hiv), places, no_memory, step):
        assert raised is None or "can't allocate memory" in str(raised)
        assert same(before, state_of(runner))
        count += 1
    assert count > 3
    expected.warmup(hiv)
    for batch in gine_net.batches_of(hiv, 2):
        assert torch.equal(runner.step(batch), expected.step(batch))
    assert same(state_of(runner), state_of(expected))
    assert sum(runner.report().replays.values()) == 2


def _stepped_once(hiv):
    """A runner without recordings, whose optimizer has a state."""
    torch.manual_seed(0)
    runner = runner_of(gine_net.Net(), hiv, warm=False)
    runner.eager_step(gine_net.batches_of(hiv, 1)[0])
    return runner


def plain_runner(store):
    """A model without running statistics, which a forward moves."""
    torch.manual_seed(0)
    model = ranked_net.Net().double()
    for norm in (model.conv.nn[1], model.norm):
        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    optimizer = adam(model, lr=0.01)
    return sg.StaticGraphRunner(
        model, sg.plan_buckets(store, ranked_net.BATCH), "eager", loss=squared,
        optimizer=optimizer,
    )  # fmt: skip


@pytest.mark.slow
def test_a_step_without_memory_is_taken_again_as_if_it_were_the_first():
    """Each operation of forward, loss and backward fails once; the optimizer's are torch's own."""
    store = ranked_net.store_of()
    runner, expected = plain_runner(store), plain_runner(store)
    batch = next(iter(runner.loader(store))).clone()
    runner.step(batch)
    expected.step(batch)
    before = state_of(runner)

    class Reached(Exception):
        """The step came to its update."""

    def update(*_: object) -> None:
        raise Reached

    stop = runner.optimizer.register_step_pre_hook(update)
    count = 0

    def step() -> None:
        with suppress(Reached):
            runner.step(batch)

    for raised in every_fault(step, [OPERATIONS], no_memory, step=7):
        assert raised is None or "can't allocate memory" in str(raised)
        assert same(before, state_of(runner))
        count += 1
    assert count > 10
    stop.remove()
    assert torch.equal(runner.step(batch), expected.step(batch))
    assert same(state_of(runner), state_of(expected))


# ---------------------------------------------------------------------- loading


@pytest.mark.sampled(5)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("places", "fail"),
    [
        ([(loading, "fill")], no_memory),
        ([(loading.SlotPool, "lend")], no_memory),
        ([(loading.StaticBatch, "__init__")], no_memory),
        ([(threading.Thread, "start")], no_thread),
        ([(ThreadPoolExecutor, "submit")], no_thread),
    ],
    ids=["copy", "slot", "batch", "thread", "submit"],
)
def test_an_epoch_goes_on_after_a_fault_without_a_graph_lost_or_doubled(places, fail, workers):
    store = ranked_net.store_of()
    plan = sg.plan_buckets(store, 30)
    ids: list[int] = []
    loader = sg.StaticLoader(store, plan, shuffle=True, num_workers=workers)
    before = set(threading.enumerate())

    def epoch() -> None:
        nonlocal loader
        ids.clear()
        loader = sg.StaticLoader(store, plan, shuffle=True, num_workers=workers)
        for batch in loader:
            ids.extend(real_ids(batch))

    for raised in every_fault(epoch, places, fail, step=1 if EVERY_CASE else 7):
        assert raised is None or str(raised) == str(fail())
        del raised  # its frames hold the batch
        gc.collect()
        assert loader._pool.free == loader._pool.count
        threads = {each for each in threading.enumerate() if each.name.startswith("staticgraph")}
        assert threads <= before
        if len(ids) < len(store):
            loader.load_state_dict(loader.state_dict())
            for batch in loader:
                ids.extend(real_ids(batch))
            del batch
        assert sorted(ids) == list(range(len(store)))


# ---------------------------------------------------------------------- serving


@pytest.mark.parametrize(
    ("places", "fail"),
    [
        ([(served_graphs.Net, "forward")], no_memory),
        (
            [(server, "hand_out"), (Server, "_answer"), (Server, "_next"), (Server, "_end")],
            no_memory,
        ),
        ([(Counts, "ran"), (Counts, "batch"), (Counts, "answer")], no_memory),
        ([(threading.Thread, "start")], no_thread),
    ],
    ids=["model", "server", "counts", "thread"],
)
def test_every_request_ends_and_the_next_server_answers(places, fail, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    runner = served_graphs.runner_of()
    graphs = [served_graphs.graph(3, k) for k in range(4)]
    expected = runner.predict(graphs)
    ends: list[object] = []

    def serve() -> None:
        ends.clear()
        with sg.Server(runner, max_wait_ms=0) as server:
            for graph in graphs:
                try:
                    future = server.submit([graph])
                except sg.errors.ServerClosed as error:
                    ends.append(error)
                    continue
                ends.append(future.exception(served_graphs.PATIENCE_S) or future.result())

    for _ in every_fault(serve, places, fail):
        answered = [k for k, end in enumerate(ends) if isinstance(end, torch.Tensor)]
        for number in answered:
            served_graphs.same(ends[number], expected[number : number + 1])
        allowed = (torch.Tensor, sg.errors.BatchFailed, sg.errors.ServerClosed)
        assert all(isinstance(end, allowed) for end in ends)
        with sg.Server(runner, max_wait_ms=0) as server:
            served_graphs.same(server.submit(graphs).result(served_graphs.PATIENCE_S), expected)
    assert answered == list(range(4))


# ---------------------------------------------------------------------- ranks


def _with_fault_on_one_rank(k: int) -> None:
    """Builds a runner, warms up and steps; rank 1's k-th collective fails."""
    calls, store = [0], ranked_net.store_of()
    if dist.get_rank() == 1:
        for name in ("all_reduce", "all_gather", "broadcast", "broadcast_object_list"):
            real = getattr(dist, name)

            def calling(*args, _real=real, **options):
                calls[0] += 1
                if calls[0] == k + 1:
                    raise no_memory()
                return _real(*args, **options)

            setattr(dist, name, calling)
    runner = plain_runner(store)
    for _, batch in zip(range(2), runner.loader(store), strict=False):
        runner.step(batch)
    raise AssertionError(f"it ran through {calls[0]} collectives")


@pytest.mark.slow
def test_a_collective_that_fails_on_one_rank_ends_the_others_with_its_error():
    k, through = 0, False
    while not through:
        with pytest.raises(RankFailed) as caught:
            on_ranks(2, _with_fault_on_one_rank, k)
        said = str(caught.value)
        through = "it ran through" in said
        lost = "rank 0 of 2 lost rank 1, which ended or does not answer: rank 1 raised RuntimeError"
        assert through or (lost in said and "can't allocate memory" in said), said
        k += 5 if EVERY_CASE else 11
    assert k > 10
