"""``--workers auto``: times the first batches of a run to choose how many threads fill the rest.

How long a machine takes to fill a batch and to run a step is not known beforehand, and too many
workers take cores from the step. So the run begins without workers, which does not change its
results. The times of its first steps, after a warmup, are the arguments of
:func:`staticgraph.plans.worker_count.autosize_workers`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.plans.worker_count import WorkerCount, autosize_workers

# Steps that warm caches and allocators, and steps that are timed.
WARM, TIMED = 4, 16


def timed(
    batches: Iterator[StaticBatch],
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[StaticBatch, None, WorkerCount | None]:
    """Yields the first batches, and returns the number of workers that suits their times.

    Args:
        batches: filled on demand, without workers.
        device: synchronized before and after the timed steps.
        clock: returns the time in seconds.

    Returns:
        The number of workers; None if there are too few batches.
    """
    filling = begun = 0.0
    for number in range(WARM + TIMED):
        if number == WARM:
            _wait(device)
            filling, begun = 0.0, clock()
        asked = clock()
        batch = next(batches, None)
        filling += clock() - asked
        if batch is None:
            return None
        yield batch
        del batch  # returns its slot to the loader
    _wait(device)
    stepping = clock() - begun - filling
    # The time to read a memory-mapped store is part of the filling.
    return autosize_workers(0.0, filling / TIMED, max(stepping / TIMED, 1e-9))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
