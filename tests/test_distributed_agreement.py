"""What ranks must agree on: a plan, a model, buckets, a finite loss, a live process group. A
disagreement is reported on every rank."""

from __future__ import annotations

import gc
import os
import signal
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.alike import squared, warned_of
from support.arena import ArenaRecorder
from support.ranked_net import BATCH, model_of, ranked, runner_of, state_of, store_of
from support.ranks import RankFailed, on_ranks
from torch import nn

import staticgraph as sg
from staticgraph.distributed.ranks import Ranks
from staticgraph.runner.ways import Auto, Stopwatch


def _refused(case: str) -> str:
    """The error on this rank; every rank must get one."""
    rank, store = dist.get_rank(), store_of()
    model, batch_size = model_of(sync=False), BATCH
    if case == "plan" and rank == 1:
        batch_size += 1
    if case == "model" and rank == 1:
        model.head = nn.Linear(6, 3).double()
    if case == "lazy":
        model.head = nn.LazyLinear(3)
    if case == "wrapped":
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    if case == "inside":
        model.conv.nn = nn.parallel.DistributedDataParallel(model.conv.nn)
    with pytest.raises(ValueError) as caught:
        runner_of(model, sg.plan_buckets(store, batch_size))
    return str(caught.value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("plan", "the plan of rank 1 differs from rank 0's"),
        ("model", "the model of rank 1 differs from rank 0's"),
        ("lazy", "parameter head.weight has no shape yet: run the lazy module once"),
        ("wrapped", "the model is wrapped in DistributedDataParallel"),
        ("inside", "'conv.nn' of the model is wrapped in DistributedDataParallel"),
    ],
)
def test_every_rank_says_what_is_not_alike(case, said):
    for message in on_ranks(2, _refused, case):
        assert said in message


def _one_bad_graph() -> str:
    """The error of a step whose loss is infinite on rank 1 alone."""

    def loss(out, batch):
        return squared(out, batch) / (dist.get_rank() == 0)

    store, runner = ranked(loss=loss, check_padding=False)
    before = state_of(runner.model)
    with pytest.raises(sg.NonFiniteLoss) as caught:
        runner.step(next(iter(runner.loader(store))))
    after = state_of(runner.model)
    assert all(torch.equal(after[n], v) for n, v in before.items() if n.endswith("weight"))
    return str(caught.value)


def test_a_loss_that_is_not_finite_ends_the_step_on_every_rank():
    first, second = on_ranks(2, _one_bad_graph)
    assert "the message of rank 1 names the graphs" in first
    assert "the loss of the batch of graphs" in second


def _other_loader(case: str) -> str:
    """The error of the first step whose loader is another one on rank 1."""
    (store, runner), second = ranked(), dist.get_rank() == 1
    options = {"shuffle": True, "seed": 4 if case == "seed" and second else 3}
    if case == "indices":
        options["indices"] = np.arange(100) if second else np.arange(1, 101)
    if case == "rank":
        options["rank"] = 0
    if case == "world size":
        options["world_size"] = 4
    if case == "alone" and second:
        options |= {"rank": 0, "world_size": 1}
    if case == "data" and second:
        graphs = store[:]
        graphs[0].y += 1
        store = sg.GraphStore.from_pyg(graphs, name="random")
    if case == "seed, later":  # as on CUDA, where reading waits for the device
        options["seed"] += second
        runner.steps.averaging._on_cpu = runner.steps.averaging.reduction._asks = False
    loader = runner.loader(store, **options)
    if case == "epoch" and second:
        loader.set_epoch(2)
    if case == "resume":
        runner.step(next(iter(loader)))
        loader.load_state_dict({**loader.state_dict(), "position": 2 + second})
    with pytest.raises(ValueError) as caught:
        runner.step(next(iter(loader)))
    return str(caught.value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("seed", "the loader's seed of rank 1 differs from rank 0's: 4 on rank 1, 3 on rank 0"),
        ("seed, later", "the loader's seed of rank 1 differs from rank 0's: 4 on rank 1, 3 on"),
        ("indices", "the loader's graphs of rank 1 differs from rank 0's: '100 from [0, 99]"),
        ("epoch", "the loader's epoch of rank 1 differs from rank 0's: 2 on rank 1, 0 on rank 0"),
        ("resume", "the loader's position of rank 1 differs from rank 0's: 3 on rank 1, 2 on"),
        ("data", "the loader's data of rank 1 differs from rank 0's"),
        ("rank", "the loader's rank, less the process's, of rank 1 differs from rank 0's: -1 on"),
        ("world size", "the loader's world_size is 4, and that of the job 2: make"),
        ("alone", "the loader's world_size of rank 1 differs from rank 0's: 1 on rank 1, 2 on"),
    ],
)
def test_loaders_that_differ_are_an_error_on_every_rank(case, said):
    """Graphs would be missing from the epoch, and others come twice."""
    for message in on_ranks(2, _other_loader, case):
        assert said in message


def _ends_alone(step: int) -> None:
    def loss(out, batch):
        if dist.get_rank() == 1 and runner.steps.averaging._steps == step:
            if step == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("no such target")
        return squared(out, batch)

    store, runner = ranked(loss=loss)
    for batch in runner.loader(store):
        runner.step(batch)


@pytest.mark.parametrize("step", [0, 3, 4])
def test_a_rank_that_ends_is_named_with_its_error(step):
    """It raises within the padding check or later, or is killed."""
    with pytest.raises(RankFailed) as caught:
        on_ranks(3, _ends_alone, step)
    text = str(caught.value)
    assert text.count(" of 3 lost rank 1, which ended") == 2
    assert ("rank 1 raised KeyError: 'no such target'" in text) == (step != 4)


class _Crowded(Stopwatch):
    """A stopwatch that finds no memory for recorded steps on rank 1."""

    def now(self) -> float:
        return 0.0

    def milliseconds(self, way, step) -> float:
        step()
        if way == "cuda-graph" and dist.get_rank() == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return {"eager": 2.0, "cuda-graph": 1.0}[way]


def _timed_without_memory() -> tuple[set[str], list[float]]:
    ways = Auto(ways=("eager", "cuda-graph"), on_cpu=True, stopwatch=_Crowded)
    store, runner = ranked(sync=False, mode=ways, recorder=ArenaRecorder)
    runner.warmup(store)
    losses = [float(runner.step(batch)) for batch in runner.loader(store)]
    return {choice.way for choice in runner.report().choices}, losses


def test_a_way_without_memory_on_one_rank_is_left_out_on_all():
    first, second = on_ranks(2, _timed_without_memory)
    assert first == second
    assert first[0] == {"eager"}


def _recorded_on_one_rank_alone(way: str) -> list[str]:
    """Rank 1's recorder fails; returns what the warm-up raised, or what it chose."""

    class Failing(ArenaRecorder):
        def record(self, *args, **options):
            if dist.get_rank() == 1:
                raise sg.NotStatic("rank 1 has no memory for it")
            return super().record(*args, **options)

    mode = Auto(ways=("eager", "cuda-graph"), on_cpu=True) if way == "auto" else "cuda-graph"
    store, runner = ranked(sync=False, mode=mode, recorder=Failing)
    if way == "auto":
        runner.warmup(store)
        losses = [float(runner.step(batch)) for batch in runner.loader(store)]
        return [*{choice.way for choice in runner.report().choices}, repr(losses)]
    with pytest.raises(sg.NotStatic) as caught:
        runner.warmup(store)
    return [str(caught.value)]


def test_a_recording_that_fails_on_one_rank_fails_on_all():
    first, second = on_ranks(2, _recorded_on_one_rank_alone, "recorded")
    assert "rank 1 ended with NotStatic: " in first[0]
    assert "rank 1 has no memory for it" in first[0]
    assert "rank 1 has no memory for it" in second[0]
    first, second = on_ranks(2, _recorded_on_one_rank_alone, "auto")
    assert first == second
    assert first[0] == "eager"


def _same_graphs(rank_given: bool) -> list[str]:
    store, runner = ranked()
    own = {"rank": dist.get_rank(), "world_size": 2} if rank_given else {}
    with warned_of("trains on the same graphs") as told:
        for batch in sg.StaticLoader(store, runner.plan, **own):
            runner.step(batch)
    return told


def test_ranks_with_the_same_graphs_are_warned_of():
    for found in on_ranks(2, _same_graphs, False):
        assert len(found) == 1
        assert "all 2 ranks took a batch that begins with graph 0" in found[0]
    assert on_ranks(2, _same_graphs, True) == [[], []]


def _destroyed() -> tuple[bool, str]:
    store, runner = ranked()
    ranks = Ranks.of()
    runner.step(next(iter(runner.loader(store))))
    group = weakref.ref(ranks.group)
    gc.disable()  # reference cycles stay until the interpreter ends
    dist.destroy_process_group()
    gone = group() is None
    with pytest.raises(RuntimeError, match="process group of this job was destroyed") as caught:
        ranks.wait()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return gone, str(caught.value)


def test_a_group_that_is_destroyed_is_held_by_nothing():
    """A runner that held it would keep gloo's threads alive until the interpreter ends, and these
    sometimes abort it."""
    for gone, said in on_ranks(2, _destroyed):
        assert gone
        assert "before dist.destroy_process_group()" in said
