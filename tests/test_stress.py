"""A long training with everything that happens in between: evaluations, predictions, losses that
raise, interrupts at any point of a step, and resumes from files.

The oracle is the same training without disturbance. Losses and parameters must match it bit for
bit; all slots must be returned, and what the process holds must not grow with the steps.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from support.alike import assert_same_state
from support.runners import made_runner
from support.tape import TapeRecorder
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, global_add_pool

import staticgraph as sg
from staticgraph.training import checkpoint


class Net(nn.Module):
    """Everything that has state: a norm, dropout's random numbers, momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GINConv(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU()))
        self.second = GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(8, 1)

    def forward(self, x, edge_index, batch, batch_size):
        h = self.second(self.first(x, edge_index), edge_index)
        return self.head(self.dropout(global_add_pool(h, batch, batch_size)))


class Loss:
    """Raises while ``error`` is set."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __call__(self, out, batch):
        if self.error is not None:
            raise self.error
        return (out - batch.y).square()


class Sitting:
    """A process that trains: a model, an optimizer, a runner and a loader, new or resumed."""

    def __init__(
        self, store: sg.GraphStore, mode: str, workers: int, folder: Path | None = None
    ) -> None:
        torch.manual_seed(0)
        self.model = Net().double()
        options = {"mode": "eager"}
        if mode == "recorded":
            options = {"mode": "cuda-graph", "recorder": TapeRecorder}
        rate = torch.tensor(1e-3, dtype=torch.float64)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=rate, fused=True, capturable=True
        )
        self.loss = Loss()
        plan = sg.plan_buckets(store, 8)
        self.loader = sg.StaticLoader(store, plan, shuffle=True, seed=3, num_workers=workers)
        self.runner = made_runner(
            self.model, plan, loss=self.loss, optimizer=self.optimizer, **options
        )
        self.done = 0
        self.batches: Iterator[sg.StaticBatch] | None = None
        if folder is not None:
            self.resume(folder)
        self.runner.warmup(store, progress=False)

    def next(self) -> sg.StaticBatch:
        if self.batches is None:
            self.batches = iter(self.loader)
        batch = next(self.batches, None)
        if batch is None:
            self.batches = None
            return self.next()
        return batch

    def save(self, folder: Path) -> None:
        checkpoint.save(
            folder,
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            loader=self.loader.state_dict(),
            done=self.done,
        )

    def resume(self, folder: Path) -> None:
        state = checkpoint.load(folder)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.batches, self.done = None, state["done"]
        checkpoint.set_random_state(state["random"])

    def assert_all_slots_are_back(self) -> None:
        self.batches = None
        gc.collect()
        assert self.loader._pool.free == self.loader._pool.count


def small_store() -> sg.GraphStore:
    rng = np.random.default_rng(0)
    graphs = []
    for n in rng.integers(2, 9, 60):
        edges = rng.integers(0, n, (2, 2 * n))
        graphs.append(
            Data(
                x=torch.from_numpy(rng.normal(size=(n, 3))),
                edge_index=torch.from_numpy(edges),
                y=torch.from_numpy(rng.normal(size=(1, 1))),
            )
        )
    return sg.GraphStore.from_pyg(graphs, progress=False)


def in_peace(store: sg.GraphStore, mode: str, steps: int) -> tuple[list[float], nn.Module]:
    sitting, losses = Sitting(store, mode, 0), []
    for _ in range(steps):
        losses.append(float(sitting.runner.step(sitting.next())))
    return losses, sitting.model


def interrupted_at(
    sitting: Sitting, random: Random
) -> tuple[torch.utils.hooks.RemovableHandle, ...]:
    """Makes a part of the next step raise KeyboardInterrupt: a layer, the loss, backward, or the
    optimizer before or after its update."""
    gone = []

    def stop(*_):
        for handle in gone:
            handle.remove()
        raise KeyboardInterrupt

    place = random.randrange(5)
    modules = [m for m in sitting.model.modules() if not list(m.children())]
    if place == 0:
        gone.append(random.choice(modules).register_forward_hook(stop))
    elif place == 1:
        gone.append(random.choice(list(sitting.model.parameters())).register_hook(stop))
    elif place == 2:
        gone.append(sitting.optimizer.register_step_pre_hook(stop))
    elif place == 3:
        gone.append(sitting.optimizer.register_step_post_hook(stop))
    else:
        sitting.loss.error = KeyboardInterrupt()
    return tuple(gone)


def look_around(sitting: Sitting, store: sg.GraphStore, random: Random) -> None:
    """Evaluations and predictions, some of them cut short."""
    kind = random.randrange(3)
    if kind == 0:
        loader = sg.StaticLoader(store, sitting.runner.plan, exact=False)
        for number, batch in enumerate(loader):
            sitting.runner.eval_step(batch)
            if number == 1:
                break
    elif kind == 1:
        sitting.runner.predict([store[random.randrange(len(store))] for _ in range(3)])
    else:
        sitting.loss.error = RuntimeError("the user's")
        batch = sg.StaticBatch.of(store, range(4), sitting.runner.plan.capacities[-1])
        with pytest.raises(RuntimeError, match="the user's"):
            sitting.runner.eval_step(batch)
        sitting.loss.error = None


# A leak in every step adds at least one object per step, so half an object is no leak. Neither is
# half the memory of one batch per step, over enough steps that an allocator arena (a MiB) does not
# matter.
OBJECTS_A_STEP, BATCHES_A_STEP = 0.5, 0.5
ARENAS = 2 << 20
SAMPLES = 40


def held() -> tuple[int, int]:
    """Objects that Python's collector tracks (tensors, frames, closures, dictionaries), and the
    resident bytes of the process, torch's own memory included."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(gc.get_objects()), pages * os.sysconf("SC_PAGE_SIZE")


def grown(steps: np.ndarray, levels: np.ndarray) -> tuple[float, int]:
    """Growth of a level per step, and the number of steps it was measured over: between the medians
    of the first and the last quarter of the samples taken after the first quarter of all steps, in
    which caches fill. Medians, because a sample may include a worker more or less, or pressure from
    another process."""
    later = steps > steps[-1] // 4
    steps, levels = steps[later], levels[later]
    quarter = len(steps) // 4
    ends = slice(None, quarter), slice(-quarter, None)
    span = np.median(steps[ends[1]]) - np.median(steps[ends[0]])
    return float((np.median(levels[ends[1]]) - np.median(levels[ends[0]])) / span), int(span)


@pytest.fixture
def young_alone():
    """The collector only goes through this test's objects, not those that other tests left."""
    gc.collect()
    gc.freeze()


@pytest.mark.slow
@pytest.mark.usefixtures("young_alone")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("mode", "steps"), [("eager", 1000), ("eager", 2000), ("recorded", 100)])
def test_a_long_training_and_all_that_comes_between(tmp_path, mode, steps):
    store, random = small_store(), Random(5)
    expected, model = in_peace(store, mode, steps)
    gc.collect()
    gc.freeze()  # the objects of compiled code outnumber those the collector should traverse
    sitting = Sitting(store, mode, workers=1)
    sitting.save(tmp_path)
    # Allocated up front, so that the memory of this test itself does not grow.
    losses = np.full(steps, np.nan)
    seen = np.zeros((SAMPLES, 3), dtype=np.int64)
    happened = {"looked": 0, "failed": 0, "interrupted": 0, "resumed anew": 0}
    furthest = 0
    while sitting.done < steps:
        chance = random.random()
        if chance < 0.08:
            look_around(sitting, store, random)
            happened["looked"] += 1
        if 0.08 <= chance < 0.12 and mode == "eager":
            failing = random.random() < 0.5
            happened["failed" if failing else "interrupted"] += 1
            hooks = ()
            if failing:
                sitting.loss.error = RuntimeError("the user's")
            else:
                hooks = interrupted_at(sitting, random)
            with pytest.raises((RuntimeError, KeyboardInterrupt)):
                sitting.runner.step(sitting.next())
            sitting.loss.error = None
            for hook in hooks:
                hook.remove()
            sitting.assert_all_slots_are_back()
            sitting.resume(tmp_path)
        elif 0.12 <= chance < (0.125 if mode == "eager" else 0.13):
            sitting.assert_all_slots_are_back()
            sitting.runner.close()
            sitting = Sitting(store, mode, random.randrange(3), tmp_path)
            happened["resumed anew"] += 1
        else:
            batch = sitting.next()
            loss = float(sitting.runner.step(batch))
            del batch
            before = losses[sitting.done]
            assert np.isnan(before) or before == loss
            losses[sitting.done] = loss
            sitting.done += 1
            if random.random() < 0.2:
                sitting.save(tmp_path)
            sample, rest = divmod(sitting.done * SAMPLES, steps)
            if sitting.done > furthest and rest < SAMPLES:
                seen[sample - 1] = sitting.done, *held()
            furthest = max(furthest, sitting.done)
    assert losses.tolist() == expected
    assert_same_state(sitting.model, model)
    assert all(happened.values()) or mode == "recorded", happened
    objects, _ = grown(seen[:, 0], seen[:, 1])
    assert objects < OBJECTS_A_STEP, seen.tolist()
    resident, span = grown(seen[:, 0], seen[:, 2])
    bound = BATCHES_A_STEP * sitting.loader.layouts[0].nbytes
    assert resident < bound or span * bound < ARENAS, seen.tolist()
    sitting.assert_all_slots_are_back()
    sitting.runner.close()
