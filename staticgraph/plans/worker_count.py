"""How many threads a loader needs, so that no step waits for its batch."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import real_option, whole_option

# Relative error allowed in sums and quotients of floating-point times.
ROUNDING = 1e-9


class WorkerCount(NamedTuple):
    """The number of threads that fill batches, of batches that may be alive, and the reason."""

    num_workers: int
    slots: int
    reason: str


def autosize_workers(
    read_s: float, collate_s: float, step_s: float, cores: int | None = None
) -> WorkerCount:
    """Finds enough workers that a step never waits for its batch, if the cores allow.

    Args:
        read_s: seconds to read one batch from where it is stored.
        collate_s: seconds to fill one batch.
        step_s: seconds of one step.
        cores: of the machine; those available to this process where None.

    Returns:
        ``ceil((read + collate) / step)`` workers, at most all cores but one, which is kept for the
        step itself, and slots for the batches they fill ahead.

    Raises:
        ValueError: a negative time, ``step_s`` that is not positive, or a number of cores below 1.
    """
    read_s, collate_s = real_option("read_s", read_s, 0), real_option("collate_s", collate_s, 0)
    step_s = real_option("step_s", step_s, 0, more=True)
    if cores is None:
        cores = len(os.sched_getaffinity(0))
    available = whole_option("cores", cores, 1)
    most = max(1, available - 1)
    # 0.1 + 0.2 is slightly more than three times 0.1, a difference no clock would see.
    needed = (read_s + collate_s) * (1.0 - ROUNDING)
    workers = math.ceil(needed / step_s)
    workers += workers * step_s < needed  # the quotient itself was rounded down
    count = min(workers, most)
    reason = (
        f"{1e3 * (read_s + collate_s):.2f} ms to make a batch, {1e3 * step_s:.2f} ms per step"
        + (f"; {workers} wanted, {how_many(available, 'core')}" if workers > most else "")
    )
    # One in use, one handed over, and one for each worker to fill.
    return WorkerCount(count, 2 + count, reason)
