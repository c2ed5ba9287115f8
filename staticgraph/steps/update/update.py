"""What follows a backward: gradients accumulate, are clipped, and the optimizer steps.

A step overwrites gradients: a compiled one into tensors that torch allocates, a recorded one into
its own, a different set for every bucket. So those of several batches are accumulated here, outside
of any step, and given to the parameters once enough batches have contributed; how a batch ran makes
no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from staticgraph.steps.computation.model_setup import Subject


class Accumulation:
    """The accumulated gradients of the batches since the last update.

    Args:
        subject: gives the number of batches and the parameters, including its optimizer's.
    """

    def __init__(self, subject: Subject) -> None:
        self._every = subject.accumulate
        self._subject = subject
        self._sums: dict[Tensor, Tensor] = {}
        self._count = 0

    def add(self) -> bool:
        """Adds the gradients of one batch, as its share of the mean.

        Returns:
            Whether enough batches have contributed: the parameters then have the mean as their
            gradients.
        """
        if self._every == 1:
            return True
        for parameter in self._subject.parameters():
            if parameter.grad is None:
                continue
            known = self._sums.get(parameter)
            if known is None:
                self._sums[parameter] = parameter.grad / self._every
            else:
                known.add_(parameter.grad, alpha=1 / self._every)
        self._count += 1
        if self._count < self._every:
            return False
        for parameter, gradient in self._sums.items():
            parameter.grad = gradient
        self._sums, self._count = {}, 0
        return True

    def state(self) -> dict[str, Any]:
        """Returns how many batches wait for their update, and the sum of their gradients.

        The sum is None for a parameter without gradients.
        """
        return {
            "count": self._count,
            "sums": [self._sums.get(parameter) for parameter in self._subject.parameters()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state` returned."""
        self._count = int(state["count"])
        pairs = zip(self._subject.parameters(), state["sums"], strict=True)
        self._sums = {p: g.to(p.device, copy=True) for p, g in pairs if g is not None}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A ``with`` block for steps that do not train, without accumulation; state is restored."""
        before = self._every, self._sums, self._count
        self._every, self._sums, self._count = 1, {}, 0
        try:
            yield
        finally:
            self._every, self._sums, self._count = before


class Update:
    """The end of a training step.

    Args:
        subject: its model's gradients are clipped, all together; without an optimizer nothing is
            trained.
    """

    def __init__(self, subject: Subject) -> None:
        self._model = subject.model
        self.optimizer: torch.optim.Optimizer | None = subject.optimizer
        self._clip_norm = subject.clip_norm

    def zero_grad(self) -> None:
        """Sets all gradients of model and optimizer to None, so that a backward does not add."""
        drop_gradients(self._model)
        for group in () if self.optimizer is None else self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def __call__(self) -> None:
        """Clips without reading the norm on the host, then steps the optimizer.

        Clears the autocast cache, so that an autocast around a whole loop casts the new weights.
        """
        assert self.optimizer is not None
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        self.optimizer.step()
        torch.clear_autocast_cache()  # its casts are of the old weights


def drop_gradients(module: torch.nn.Module) -> None:
    """Does what ``module.zero_grad()`` does, but faster.

    Skipping names and sets of visited modules and parameters saves a fiftieth of a small step. A
    part that occurs twice is visited twice, which changes nothing.
    """
    for parameter in module._parameters.values():
        if parameter is not None:
            parameter.grad = None
    for child in module._modules.values():
        if child is not None:
            drop_gradients(child)
