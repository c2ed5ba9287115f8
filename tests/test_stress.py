"""What the process holds does not grow with the steps, whatever happens between them: evaluations,
predictions, losses that raise, and interrupts. All slots come back."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from support.alike import adam
from support.plain_epochs import PLAN, STORE, make_net
from support.runners import made_runner

import staticgraph as sg


class Loss:
    """Raises while ``error`` is set."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __call__(self, out, batch):
        if self.error is not None:
            raise self.error
        return (out - batch.y).square()


def look_around(runner: sg.StaticGraphRunner, loss: Loss, random: Random) -> None:
    """An evaluation that is left early, a prediction, or an evaluation that raises."""
    kind = random.randrange(3)
    if kind == 0:
        for number, batch in enumerate(sg.StaticLoader(STORE, runner.plan, exact=False)):
            runner.eval_step(batch)
            if number == 1:
                break
    elif kind == 1:
        runner.predict([STORE[random.randrange(len(STORE))] for _ in range(3)])
    else:
        loss.error = RuntimeError("the user's")
        with pytest.raises(RuntimeError, match="the user's"):
            runner.eval_step(sg.StaticBatch.of(STORE, range(4), runner.plan.capacities[-1]))
        loss.error = None


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
@pytest.mark.parametrize(("mode", "steps"), [("eager", 500), ("cuda-graph", 200)])
def test_nothing_grows_with_the_steps(mode, steps):
    model, loss, random = make_net(), Loss(), Random(5)
    rate = torch.tensor(1e-3, dtype=torch.float64)
    optimizer = adam(model, lr=rate, fused=True, capturable=True)
    runner = made_runner(model, PLAN, mode, loss=loss, optimizer=optimizer)
    loader = sg.StaticLoader(STORE, PLAN, shuffle=True, seed=3, num_workers=1)
    runner.warmup(STORE)
    gc.collect()
    gc.freeze()  # the objects of compiled code outnumber those the collector should traverse
    # Allocated up front, so that the memory of this test itself does not grow.
    seen, done = np.zeros((SAMPLES, 3), dtype=np.int64), 0
    while done < steps:
        for batch in loader:
            chance = random.random()
            if chance < 0.08:
                look_around(runner, loss, random)
            elif chance < 0.12 and mode == "eager":
                loss.error = KeyboardInterrupt()
                with pytest.raises(KeyboardInterrupt):
                    runner.step(batch)
                loss.error = None
            runner.step(batch)
            del batch
            sample, rest = divmod(done * SAMPLES, steps)
            if done < steps and rest < SAMPLES:
                seen[sample] = done, *held()
            done += 1
    objects, _ = grown(seen[:, 0], seen[:, 1])
    assert objects < OBJECTS_A_STEP, seen.tolist()
    resident, span = grown(seen[:, 0], seen[:, 2])
    bound = BATCHES_A_STEP * loader.layouts[0].nbytes
    assert resident < bound or span * bound < ARENAS, seen.tolist()
    assert loader._pool.free == loader._pool.count
    runner.close()
