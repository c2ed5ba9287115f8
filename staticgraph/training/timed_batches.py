"""``--workers auto``: the first batches of a run are timed, and say how many threads fill the rest.

Nobody knows beforehand how long a machine takes to fill a batch and to step on it, and a number
that is too large takes cores from the step. So the run begins without workers, as it may: their
number changes no result. Its first steps are warm soon, and what they took is what
:func:`staticgraph.plans.worker_count.autosize_workers` asks for.
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
    """Hands the first batches on, and returns the workers that their times ask for.

    Args:
        batches: filled when they are asked for, without workers.
        device: waited for before and after the timed steps.
        clock: seconds.

    Returns:
        None where there are not enough batches to tell.
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
        del batch  # its slot is the loader's again
    _wait(device)
    stepping = clock() - begun - filling
    # What is read from a mapped store is read while a slot is filled.
    return autosize_workers(0.0, filling / TIMED, max(stepping / TIMED, 1e-9))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
