"""Verification: what a runner replays is what the model computes, and no input is stale.

One batch is stepped twice from the same state, through the runner and in plain eager, and the loss,
gradients and parameters are compared. Where a gradient is nothing but rounding, as that of a bias
before a BatchNorm, Adam moves the parameter by a whole learning rate in either direction. A second
eager step, with parameters moved by a few units in their last place, shows how large rounding is;
such elements are not compared after the step, and the result says how many they are. Then each
input field is changed in turn, and the output must change. A recording whose input was never copied
passes every test of shapes and fails these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from staticgraph.batches.batch.field_mask import field_mask
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.jitter import nudge
from staticgraph.checking.outcome import CLEAR
from staticgraph.runner.execution.steps import Steps
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.rows.provenance import leaves
from staticgraph.steps.state.training_state import untouched
from staticgraph.text.how_many import how_many
from staticgraph.text.notebook import as_preformatted
from staticgraph.text.table import table

# Chosen, not derived: far above float32 rounding, far below the effect of a stale or skipped input.
# TF32 and bfloat16 round more coarsely and need a larger one.
TOLERANCE = 1e-3


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
        ours = _after_step(runner, batch, eager=False)
        theirs = _after_step(runner, plain, eager=True)
        errors["loss"] = _relative([ours.loss], [theirs.loss])
        errors["gradients"] = _relative(
            list(ours.gradients.values()), list(theirs.gradients.values())
        )
        nudged = _after_step(runner, plain, eager=True, nudged=True)
        unclear = _unclear(ours.gradients, theirs.gradients, nudged.gradients)
        left_out = sum(int(mask.sum()) for mask in unclear.values())
        errors["parameters"] = _relative(_without(ours, unclear), _without(theirs, unclear))
    with untouched(subject.model, subject.optimizer, beside=subject.functions):
        out = _rows(runner, batch, eager=False)
        errors["output"] = _relative(out, _rows(runner, plain, eager=True))
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


class _AfterStep(NamedTuple):
    """What one step computed; gradients and parameters by the names of the parameters."""

    loss: Tensor
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def _after_step(
    runner: RunsBothWays, batch: StaticBatch, eager: bool, nudged: bool = False
) -> _AfterStep:
    """Returns loss, gradients and parameters after one step from the current state."""
    model = runner.subject.model
    with untouched(model, runner.subject.optimizer, beside=runner.subject.functions):
        if nudged:
            nudge(model)
        loss = runner.eager_step(batch) if eager else runner.step(batch)
        named = dict(model.named_parameters())
        return _AfterStep(
            loss.clone(),
            {name: p.grad.clone() for name, p in named.items() if p.grad is not None},
            {name: p.detach().clone() for name, p in named.items()},
        )


def _unclear(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], nudged: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Masks of the elements whose gradient is no larger than rounding, by name.

    Equal gradients are clear, zero or not: they must move a parameter alike.

    Args:
        ours: the runner's gradients.
        theirs: those of eager.
        nudged: those of eager from nudged parameters; how far they are from ``theirs`` is rounding,
            whatever the runner computed.
    """
    masks = {}
    for name in ours.keys() & theirs.keys() & nudged.keys():
        rounding = (nudged[name] - theirs[name]).abs()
        if rounding.numel() and bool(rounding.isfinite().all()):
            small = theirs[name].abs() <= CLEAR * rounding.max()
            masks[name] = small & (ours[name] != theirs[name])
    return masks


def _without(step: _AfterStep, unclear: dict[str, Tensor]) -> list[Tensor]:
    """Returns the parameters with zeros in these elements."""
    return [
        parameter.masked_fill(unclear[name], 0) if name in unclear else parameter
        for name, parameter in step.parameters.items()
    ]


def _rows(runner: RunsBothWays, batch: StaticBatch, eager: bool) -> list[Tensor]:
    """The real rows of each tensor of the output in evaluation mode.

    A tensor without rows of the batch, such as a loss among the outputs, is returned whole.
    """
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


def _relative(found: list[Tensor], expected: list[Tensor]) -> float:
    largest = max((float(e.abs().max()) for e in expected if e.numel()), default=0.0)
    if len(found) != len(expected):
        return float("inf")
    worst = max(
        (float((f - e).abs().max()) for f, e in zip(found, expected, strict=True) if e.numel()),
        default=0.0,
    )
    return worst / max(largest, torch.finfo(torch.float32).tiny)
