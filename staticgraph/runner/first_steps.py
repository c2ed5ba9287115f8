"""The first step of every bucket, compared with the same step in eager.

A compiled, rewritten or recorded step should be what the model says. Where it is not, it still
gives numbers. So the first one of each bucket that does not run in eager is taken from the same
state as an eager one, over the same rows, and loss, gradients, buffers and optimizer state are
compared.

Invariant: everything that a step changes is restored.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext

from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.comparison import attempt
from staticgraph.checking.equal_draws import EqualDraws
from staticgraph.checking.jitter import nudge
from staticgraph.checking.outcome import CLEAR, Difference, Outcome, Tolerance
from staticgraph.errors import users_level
from staticgraph.runner.steps import Steps
from staticgraph.steps.compilation.modes import FUSED
from staticgraph.steps.state.training_hooks import without_callbacks

# What is compared after a step, and how an outcome's names of it begin.
KINDS = {
    "loss": "the loss",
    "gradients": "the gradient of ",
    "parameters": "the parameter ",
    "buffers": "the buffer ",
    "optimizer": "the optimizer's ",
}


class FirstSteps:
    """Compares the first step of every bucket that does not run in eager with the same in eager.

    Random numbers are one constant on both sides; where they are drawn inside compiled code, a
    model that draws any is not compared. Several ranks, whose batches may be of different buckets,
    do not compare.

    Args:
        steps: its steps.

    Attributes:
        buckets: those that were compared.
        seconds: how long it took.
    """

    def __init__(self, steps: Steps) -> None:
        self.buckets: set[int] = set()
        self.seconds: float = 0.0
        self._steps = steps

    def compare(self, batch: StaticBatch) -> None:
        """Compares, once per bucket; warns if the step is not what eager computes."""
        steps, bucket = self._steps, batch.bucket
        way = steps.way_of(bucket, "step")
        if bucket in self.buckets or way == "eager" or steps.ranks is not None or not batch.real:
            return
        self.buckets.add(bucket)
        started = time.perf_counter()
        with steps.accumulated.kept(), steps.finite.unread():
            difference = attempt(lambda: self._difference(batch, way))
        if difference is not None:
            warnings.warn(
                f"the first step of bucket {bucket}, run as {way!r}, is not that of eager: "
                f"{difference.name} is off by {difference.how}. runner.verify(batch) compares them "
                "in detail; mode='eager' computes what the model says",
                stacklevel=users_level(),
            )
        self.seconds += time.perf_counter() - started

    def _difference(self, batch: StaticBatch, way: str) -> Difference | None:
        steps, subject, train = self._steps, self._steps.subject, self._steps.train
        plain = batch.replace()
        plain.real = None
        own = after_step(steps, lambda: train(batch.clone(), way))
        if way == FUSED:  # compiled now; it calls its operators one by one, as eager does
            own = after_step(steps, lambda: train(batch.clone(), way), constant=True)
        eager, nudged = (
            after_step(steps, lambda: train(plain.clone(), "eager"), nudged, constant=True)
            for nudged in (False, True)
        )
        if len(own.draws) != len(eager.draws) or not all(draw.hashed for draw in own.draws):
            return None
        dtype = next(p.dtype for p in subject.model.parameters())
        tolerance = Tolerance.of(subject.autocast or dtype).other_order
        for name in [n for n in eager.values if n.startswith(KINDS["parameters"])]:
            del eager.values[name]  # Adam moves them by a whole learning rate even for rounding
        return eager.clear_difference(own, tolerance, lambda: nudged)


def after_step(
    steps: Steps, step: Callable[[], Tensor], nudged: bool = False, constant: bool = False
) -> Outcome:
    """Returns loss, gradients, parameters, buffers and optimizer state after one step from the
    current state."""
    random = EqualDraws(constant=True) if constant else None
    subject = steps.subject
    with steps.untouched(), without_callbacks(subject.model, subject.optimizer):
        if nudged:
            nudge(subject.model)
        with random or nullcontext():
            loss = step()
        draws = random.draws if random else ()
        return Outcome.of(subject.model, None, loss, None, draws, subject.optimizer)


def leave_out_rounding(ours: Outcome, theirs: Outcome, nudged: Outcome) -> int:
    """Sets the elements of parameters whose gradient is rounding to zero.

    Args:
        ours: after the runner's step.
        theirs: after that of eager.
        nudged: after that of eager from nudged parameters; how far its gradients are from
            ``theirs`` is rounding, whatever the runner computed.

    Returns:
        The number of these elements.
    """
    kind = KINDS["gradients"]
    ours_of, theirs_of, nudged_of = (
        {name.removeprefix(kind): v for name, v in outcome.values.items() if name.startswith(kind)}
        for outcome in (ours, theirs, nudged)
    )
    masks = _unclear(ours_of, theirs_of, nudged_of)
    for outcome in (ours, theirs, nudged):
        for name, mask in masks.items():
            outcome.values[KINDS["parameters"] + name].masked_fill_(mask, 0)
    return sum(int(mask.sum()) for mask in masks.values())


def _unclear(
    ours: dict[str, Tensor],
    theirs: dict[str, Tensor],
    nudged: dict[str, Tensor],
) -> dict[str, Tensor]:
    """Masks of the elements whose gradient is no larger than rounding, by name.

    Equal gradients are clear, zero or not: they must move a parameter alike.
    """
    masks = {}
    for name in ours.keys() & theirs.keys() & nudged.keys():
        rounding = (nudged[name] - theirs[name]).abs()
        if rounding.numel() and bool(rounding.isfinite().all()):
            small = theirs[name].abs() <= CLEAR * rounding.max()
            masks[name] = small & (ours[name] != theirs[name])
    return masks
