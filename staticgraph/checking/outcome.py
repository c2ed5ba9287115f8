"""What a run of a model computed, and how two runs differ by more than rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.checking.equal_draws import Draw
from staticgraph.checking.padding_culprit import real_part
from staticgraph.nn.context.batch_context import BatchContext

# How many times rounding a difference must be.
CLEAR = 10.0


class Tolerance(NamedTuple):
    """How far two runs may differ, relative to the largest value of a kind.

    Attributes:
        same_order: of runs that do the same arithmetic, where only atomics add in another order.
        other_order: of sums of other lengths: GINE 5x300 in float32 is off by 4e-5 from plain PyG,
            gradients included.
    """

    same_order: float
    other_order: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Tolerance:
        """Returns the tolerance of the coarsest dtype that a run computes in."""
        return TOLERANCES.get(dtype, Tolerance(1e-2, 5e-2))


TOLERANCES = {torch.float64: Tolerance(1e-10, 1e-9), torch.float32: Tolerance(3e-5, 1e-3)}


class Difference(NamedTuple):
    """One value that differs between two outcomes."""

    name: str
    off: float

    @property
    def how(self) -> str:
        """The difference in words."""
        if self.off != self.off or self.off == float("inf"):
            return "more than any number (it is not finite)"
        return f"{self.off:.1e} of the largest"


class Outcome(NamedTuple):
    """What a run of a model computed, each value by the name that an error calls it.

    Attributes:
        values: outputs, parameters, loss, gradients, buffers and optimizer state.
        scales: for each, the largest value of its kind; most are never asked for.
        draws: the operations that drew random numbers.
    """

    values: dict[str, Tensor]
    scales: dict[str, Callable[[], float]]
    draws: tuple[Draw, ...] = ()

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        out: Any,
        loss: Tensor | None,
        context: BatchContext | None,
        draws: Iterable[Draw] = (),
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Outcome:
        """Returns copies of the real rows of everything; ``context`` is None without padding.

        Gradients are those that a backward or a step has left.
        """
        outcome = cls({}, {})
        for number, tensor in enumerate(tensors_in(out)):
            name = f"output {number}" if number else "the output"
            outcome._add({name: real_part(tensor, context)})
        parameters = dict(model.named_parameters())
        outcome._add({f"the parameter {n}": p.detach().clone() for n, p in parameters.items()})
        if loss is not None:
            outcome._add({"the loss": loss.detach().clone()})
        outcome._add(
            {
                f"the gradient of {name}": p.grad.detach().clone()
                for name, p in parameters.items()
                if p.grad is not None and not p.grad.is_sparse
            }
        )
        for path, module in model.named_modules():
            buffers = {n: b for n, b in module._buffers.items() if b is not None}
            for floating in (True, False):
                outcome._add(
                    {
                        f"the buffer {path}.{name}".replace(" .", " "): real_part(buffer, context)
                        for name, buffer in buffers.items()
                        if buffer.is_floating_point() is floating
                    },
                    None if floating else 1.0,
                )
        state = optimizer.state if optimizer is not None else {}
        for key in dict.fromkeys(key for values in state.values() for key in values):
            of_key = {name: state[p].get(key) for name, p in parameters.items() if p in state}
            tensors = {n: value for n, value in of_key.items() if isinstance(value, Tensor)}
            outcome._add({f"the optimizer's {key} of {n}": t.clone() for n, t in tensors.items()})
        return outcome._replace(draws=tuple(draws))

    def _add(self, values: dict[str, Tensor | None], scale: float | None = None) -> None:
        """Adds values of one kind."""
        there = {
            name: torch.view_as_real(value) if value.is_complex() else value
            for name, value in values.items()
            if value is not None
        }
        if not there:
            return

        @cache
        def largest() -> float:
            """The largest absolute value of this kind, unless its scale is given."""
            sizes = [float(v.detach().abs().max()) for v in there.values() if v.numel()]
            return max([*sizes, 1e-6]) if scale is None else scale

        self.values.update(there)
        self.scales.update(dict.fromkeys(there, largest))

    @property
    def finite(self) -> bool:
        """Whether all values are finite."""
        return all(bool(torch.isfinite(value).all()) for value in self.values.values())

    @property
    def refused(self) -> bool:
        """Whether every output is NaN, as where a search had no room for what it found."""
        outputs = [
            value
            for name, value in self.values.items()
            if name.startswith(("the output", "output ")) and value.is_floating_point()
        ]
        return bool(outputs) and all(bool(value.isnan().all()) for value in outputs)

    def differences(self, other: Outcome, kind: str = "") -> list[Difference]:
        """Returns how far each value is from another outcome's, where both have it in one shape.

        Args:
            other: the other outcome.
            kind: the beginning of the values' names.
        """
        return [
            Difference(name, self._off(other, name))
            for name, value in self.values.items()
            if name.startswith(kind)
            and name in other.values
            and other.values[name].shape == value.shape
        ]

    def largest_difference(self, other: Outcome) -> float:
        """Returns how far the value that differs most is from another outcome's."""
        return max((each.off for each in self.differences(other)), default=0.0)

    def _off(self, other: Outcome, name: str) -> float:
        a, b = self.values[name], other.values[name]
        if not a.numel():
            return 0.0
        same = (a == b) | (a.isnan() & b.isnan())  # PyG's RGATConv leaves a parameter unset
        off = float(torch.where(same, 0, (a.double() - b.double()).abs()).max())
        off = off / self.scales[name]() if off else off
        return off if off == off else float("inf")

    def clear_difference(
        self, other: Outcome, tolerance: float, nudged: Callable[[], Outcome | None]
    ) -> Difference | None:
        """Returns the first value that differs by more than a tolerance and than rounding.

        Rounding is large in a deep net in float32 with a gradient near zero, or where sums run in
        another order at every run.

        Args:
            other: the other outcome.
            tolerance: below it, nothing differs.
            nudged: computes this outcome from parameters that are moved by a few units in their
                last place; None if it cannot.
        """
        differences = [each for each in self.differences(other) if not each.off <= tolerance]
        if not differences:
            return None
        again = nudged()
        rounding = {} if again is None else dict(self.differences(again))
        return next(
            (e for e in differences if not e.off <= CLEAR * rounding.get(e.name, 0.0)), None
        )
