"""Verification: what a runner replays is what the model computes, and no input is stale.

One batch is stepped twice from the same state, through the runner and in plain eager, and the loss,
gradients, parameters and optimizer state are compared. Where a gradient is nothing but rounding, as
that of a bias before a BatchNorm, Adam moves the parameter by a whole learning rate in either
direction. A second eager step, with parameters moved by a few units in their last place, shows how
large rounding is; such elements are not compared after the step, and the result says how many they
are. Then each input field is changed in turn, and the output must change. A recording whose input
was never copied passes every test of shapes and fails these.

On a user's own run, :mod:`staticgraph.runner.first_steps` makes the first of these
comparisons by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from staticgraph.batches.batch.field_mask import field_mask
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.outcome import Outcome, Tolerance
from staticgraph.runner.first_steps import KINDS, after_step, leave_out_rounding
from staticgraph.runner.steps import Steps
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.rows.provenance import leaves
from staticgraph.text.how_many import how_many
from staticgraph.text.table import as_preformatted, table

# TF32 and bfloat16 round more coarsely and need a larger one.
TOLERANCE = Tolerance.of(torch.float32).other_order
_NO_MODEL = torch.nn.Module()


class RunsBothWays(Protocol):
    """A runner as a verification uses it: each of its calls, and the same call in eager."""

    subject: Subject
    steps: Steps

    def step(self, batch: StaticBatch) -> Tensor:
        """Takes one training step."""
        ...

    def eager_step(self, batch: StaticBatch) -> Tensor:
        """The same step in eager."""
        ...

    def eval_step(self, batch: StaticBatch) -> Any:
        """Returns the output in evaluation mode, as ``.out``."""
        ...

    def eager_forward(self, batch: StaticBatch) -> Any:
        """Returns the output in evaluation mode, in eager."""
        ...


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


def verify(runner: RunsBothWays, batch: StaticBatch, tolerance: float = TOLERANCE) -> Verification:
    """Compares a runner's step and forward with eager on one batch, without changing anything.

    Args:
        runner: warmed up. Dropout must be off (p=0 or frozen) for the steps to be comparable.
        batch: of one of its buckets, on its device, with real graphs in it.
        tolerance: the largest relative difference that passes.
    """
    plain = batch.replace()
    plain.real = None  # eager over the same physical rows
    errors: dict[str, float] = {}
    left_out = 0
    subject = runner.subject
    if subject.trains:
        ours = after_step(runner.steps, lambda: runner.step(batch.clone()))
        theirs = after_step(runner.steps, lambda: runner.eager_step(plain.clone()))
        nudged = after_step(runner.steps, lambda: runner.eager_step(plain.clone()), nudged=True)
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
        tolerance,
        left_out,
    )


def _worst(theirs: Outcome, ours: Outcome, kind: str) -> float:
    """The largest difference of values of one kind; infinite if one side lacks some."""
    names = [{n for n in o.values if n.startswith(kind)} for o in (theirs, ours)]
    if names[0] != names[1]:
        return float("inf")
    return max((each.off for each in theirs.differences(ours, kind)), default=0.0)


def _rows(runner: RunsBothWays, batch: StaticBatch, eager: bool) -> list[Tensor]:
    """The real rows of each tensor of the output in evaluation mode.

    A tensor without rows of the batch, such as a loss among the outputs, is returned whole.
    """
    batch = batch.clone()
    out = runner.eager_forward(batch) if eager else runner.eval_step(batch).out
    levels = runner.steps.computation.levels(out, batch)
    return [
        (value if (level := levels[path]) is None else value[batch[f"{level}_mask"]]).clone()
        for path, value in leaves(out)
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
