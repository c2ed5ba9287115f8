"""Learning rate schedules and early stopping, as functions of the measurements so far.

Neither has state: the rate of a step follows from its number, or from the validation losses of the
epochs before, so a resumed run continues with the rate that it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# The values of --schedule, and what the rate does.
SCHEDULES = {
    "constant": "does not change",
    "linear": "falls linearly to 0 over all steps",
    "cosine": "falls to 0 as half a cosine over all steps",
    "warmup-cosine": "rises linearly over the first tenth of the steps, then falls as cosine",
    "plateau": "halves when the validation loss has not fallen for 5 epochs",
}
# Schedules whose rate depends on the total number of steps.
NEED_THE_END = frozenset({"linear", "cosine", "warmup-cosine"})
WARMUP = 0.1
PATIENCE, FALL = 5, 0.5


def factor(schedule: str, step: int, steps: int, val_losses: Sequence[float | None]) -> float:
    """The learning rate of a step, as a share of the configured one.

    Args:
        schedule: a key of :data:`SCHEDULES`.
        step: the number of the step, from 0.
        steps: the total number of steps.
        val_losses: the validation losses of the epochs so far.
    """
    if schedule == "linear":
        return max(0.0, 1.0 - step / steps)
    if schedule == "cosine":
        return _cosine(step, steps)
    if schedule == "warmup-cosine":
        rise = max(1, round(WARMUP * steps))
        return (step + 1) / rise if step < rise else _cosine(step - rise, max(1, steps - rise))
    if schedule == "plateau":
        return FALL ** _plateaus(val_losses)
    return 1.0


def _cosine(step: int, steps: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / steps)))


def _plateaus(val_losses: Sequence[float | None]) -> int:
    """How often the loss did not fall for :data:`PATIENCE` epochs."""
    best, since, plateaus = math.inf, 0, 0
    for loss in val_losses:
        if loss is not None and loss < best:
            best, since = loss, 0
            continue
        since += 1
        if since == PATIENCE:
            plateaus, since = plateaus + 1, 0
    return plateaus


def stands_still(val_losses: Sequence[float | None], epochs: int) -> bool:
    """Whether the validation loss has not fallen for this many epochs."""
    best, since = math.inf, 0
    for loss in val_losses:
        fell = loss is not None and loss < best
        best, since = (loss, 0) if fell and loss is not None else (best, since + 1)
    return since >= epochs
