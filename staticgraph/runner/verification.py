"""Verification: what a runner replays is what the model computes, and no input is stale.

One batch is stepped twice from the same state, through the runner and in plain eager, and the loss,
gradients, parameters and optimizer state are compared. Where a gradient is nothing but rounding, as
that of a bias before a BatchNorm, Adam moves the parameter by a whole learning rate in either
direction. A second eager step, with parameters moved by a few units in their last place, shows how
large rounding is; such elements are not compared after the step, and the result says how many they
are. Then each input field is changed in turn, and the output must change. A recording whose input
was never copied passes every test of shapes and fails these.

On a user's own run, :class:`FirstSteps` makes the first of these comparisons by itself. A compiled,
rewritten or recorded step should be what the model says. Where it is not, it still gives numbers.
So the first one of each bucket that does not run in eager is taken from the same state as an eager
one, over the same rows, and loss, gradients, buffers and optimizer state are compared.

Invariant: everything that a step changes is restored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.batch_arrays import field_mask
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.comparison import attempt
from staticgraph.checking.equal_draws import EqualDraws, nudge
from staticgraph.checking.outcome import CLEAR, Difference, Outcome, Tolerance
from staticgraph.errors import users_level
from staticgraph.runner.steps import Steps
from staticgraph.steps.compilation.modes import FUSED
from staticgraph.steps.computation.model_call import output_tensors
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_hooks import without_callbacks
from staticgraph.text.how_many import how_many
from staticgraph.text.table import as_preformatted, table

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
        steps: of the model.

    Attributes:
        buckets: those that were compared.
    """

    def __init__(self, steps: Steps) -> None:
        self.buckets: set[int] = set()
        self._steps = steps

    def compare(self, batch: StaticBatch) -> None:
        """Compares, once per bucket; warns if the step is not what eager computes."""
        steps, bucket = self._steps, batch.bucket
        way = steps.way_of(bucket, "step")
        if bucket in self.buckets or way == "eager" or steps.ranks is not None or not batch.real:
            return
        self.buckets.add(bucket)
        with steps.accumulated.set_aside(), steps.finite.unread():
            difference = attempt(lambda: self._difference(batch, way))
        if difference is not None:
            warnings.warn(
                f"the first step of bucket {bucket}, run as {way!r}, is not that of eager: "
                f"{difference.name} is off by {difference.how}. runner.verify(batch) compares them "
                "in detail; mode='eager' computes what the model says",
                stacklevel=users_level(),
            )

    def _difference(self, batch: StaticBatch, way: str) -> Difference | None:
        plain = batch.replace()
        plain.real = None
        if way == FUSED:  # compile; then it calls its operators one by one, as eager does
            with stepping_apart(self._steps):
                self._steps.train(batch.clone(), way)
        # A slope that jumps where rounding crosses the zero of a ReLU does not from nearby.
        here = self._difference_from((), batch, plain, way)
        return here and self._difference_from((MOVED,), batch, plain, way)

    def _difference_from(
        self, nudges: tuple[float, ...], batch: StaticBatch, plain: StaticBatch, way: str
    ) -> Difference | None:
        steps, subject, train = self._steps, self._steps.subject, self._steps.train

        def eager_step(*more: float) -> Outcome:
            """After the same step in eager."""
            moves = (*nudges, *more)
            return after_step(steps, lambda: train(plain.clone(), "eager"), moves, constant=True)

        stepped = after_step(steps, lambda: train(batch.clone(), way), nudges, way == FUSED)
        eager = eager_step()
        if len(stepped.draws) != len(eager.draws) or not all(draw.hashed for draw in stepped.draws):
            return None
        tolerance = tolerance_of(subject)
        # An autocast rounds far more than a parameter's last place.
        rounding = 0.0 if subject.autocast is None else torch.finfo(subject.autocast).eps
        for name in [n for n in eager.values if n.startswith(KINDS["parameters"])]:
            del eager.values[name]  # Adam moves them by a whole learning rate even for rounding
        return eager.clear_difference(stepped, tolerance, lambda: eager_step(rounding))


def tolerance_of(subject: Subject) -> float:
    """The largest relative difference that passes, in the dtype that the model computes in."""
    dtype = next((p.dtype for p in subject.model.parameters()), torch.float32)
    return Tolerance.of(subject.autocast or dtype).other_order


def after_step(
    steps: Steps, step: Callable[[], Tensor], nudges: Sequence[float] = (), constant: bool = False
) -> Outcome:
    """Returns loss, gradients, parameters, buffers and optimizer state after one step from the
    current state, with parameters moved as by :func:`nudge`, once for each share."""
    random = EqualDraws(constant=True) if constant else None
    subject = steps.subject
    with stepping_apart(steps):
        for share in nudges:
            nudge(subject.model, share)
        with random or nullcontext():
            loss = step()
        draws = random.draws if random else ()
        return Outcome.of(subject.model, None, loss, None, draws, subject.optimizer)


@contextmanager
def stepping_apart(steps: Steps) -> Iterator[None]:
    """Puts back whatever steps in the block change, and calls nobody back."""
    with steps.untouched(), without_callbacks(steps.subject.model, steps.subject.optimizer):
        yield


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
            parameter = KINDS["parameters"] + name
            outcome.values[parameter] = outcome.values[parameter].masked_fill(mask, 0)
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


# Share by which parameters are moved for a second look, far more than rounding.
MOVED = 1e-3
_NO_MODEL = torch.nn.Module()


@dataclass(frozen=True, slots=True)
class Verification:
    """How a runner's results differ from eager, and which fields moved the output.

    ``errors`` are relative to the largest value of each kind. ``passed`` is the verdict; a field
    that the model does not read is in ``unmoved``, for the caller to judge. ``left_out`` counts the
    elements of parameters that were not compared, since their gradient is rounding.
    """

    errors: dict[str, float]
    moved: tuple[str, ...]
    unmoved: tuple[str, ...]
    tolerance: float
    left_out: int = 0

    @property
    def passed(self) -> bool:
        """Whether all differences are within the tolerance and a field moved the output."""
        return bool(self.moved) and all(e <= self.tolerance for e in self.errors.values())

    _repr_html_ = as_preformatted

    def __str__(self) -> str:
        rows = [
            (name, f"{error:.1e}", "yes" if error <= self.tolerance else "NO")
            for name, error in self.errors.items()
        ]
        return "\n".join(
            [
                table(("compared with eager", "difference", f"within {self.tolerance:.0e}"), rows),
                f"fields that move the output: {', '.join(self.moved) or 'NONE'}",
                f"fields that do not: {', '.join(self.unmoved) or 'none'}",
                *self._note(),
            ]
        )

    def _note(self) -> list[str]:
        if not self.left_out:
            return []
        elements = how_many(self.left_out, "element")
        return [f"parameters: without {elements} whose gradient is rounding, of either sign"]


def verify(runner: Any, batch: StaticBatch) -> Verification:
    """Compares a runner's step and forward with eager on one batch, without changing anything.

    Args:
        runner: warmed up. Dropout must be off (p=0 or frozen) for the steps to be comparable.
        batch: of one of its buckets, on its device, with real graphs in it.
    """
    plain = batch.replace()
    plain.real = None  # eager over the same physical rows
    errors: dict[str, float] = {}
    left_out = 0
    subject = runner.subject
    if subject.trains:
        ours = after_step(runner.steps, lambda: runner.step(batch.clone()))
        theirs = after_step(runner.steps, lambda: runner.eager_step(plain.clone()))
        nudged = after_step(runner.steps, lambda: runner.eager_step(plain.clone()), [0.0])
        left_out = leave_out_rounding(ours, theirs, nudged)
        errors = {word: _worst(theirs, ours, kind) for word, kind in KINDS.items()}
    with runner.steps.untouched():
        out = _rows(runner, batch, eager=False)
        eager = Outcome.of(_NO_MODEL, _rows(runner, plain, eager=True), None, None)
        errors["output"] = _worst(eager, Outcome.of(_NO_MODEL, out, None, None), "")
        moved = {
            field.name: _differ(out, _rows(runner, _changed(batch, field.name), False))
            for field in batch.layout.schema
            if field.name.rpartition(".")[2] != "y" and not field.is_index
        }
    return Verification(
        errors,
        tuple(name for name, did in moved.items() if did),
        tuple(name for name, did in moved.items() if not did),
        tolerance_of(subject),
        left_out,
    )


def _worst(theirs: Outcome, ours: Outcome, kind: str) -> float:
    """The largest difference of values of one kind; infinite if one side lacks some."""
    names = [{n for n in o.values if n.startswith(kind)} for o in (theirs, ours)]
    if names[0] != names[1]:
        return float("inf")
    return max((each.off for each in theirs.differences(ours, kind)), default=0.0)


def _rows(runner: Any, batch: StaticBatch, eager: bool) -> list[Tensor]:
    """The real rows of each tensor of the output in evaluation mode.

    A tensor without rows of the batch, such as a loss among the outputs, is returned whole.
    """
    batch = batch.clone()
    out = runner.eager_forward(batch) if eager else runner.eval_step(batch).out
    levels = runner.steps.computation.levels(out, batch)
    return [
        (value if (level := levels[path]) is None else value[batch[f"{level}_mask"]]).clone()
        for path, value in output_tensors(out)
    ]


def _differ(left: list[Tensor], right: list[Tensor]) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(left, right, strict=True))


def _changed(batch: StaticBatch, name: str) -> StaticBatch:
    """Returns the batch with other values in one field.

    The real rows are reversed, which keeps categories valid, and floating-point values also
    shifted.
    """
    value = batch[name]
    field = batch.layout.schema[name]
    mask = field_mask(batch, field)
    real = value[mask]
    other = value.clone()
    other[mask] = real.flip(0) + 1 if value.is_floating_point() else real.flip(0)
    return batch.replace(**{name: other})
