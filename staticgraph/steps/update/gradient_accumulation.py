"""Gradients of several batches, added up before an update.

A step overwrites gradients: a compiled one into tensors that torch makes, a recorded one into its
own, another set for every bucket. So they are added here, outside of any step, and given to the
parameters when enough are together; how a batch ran makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from staticgraph.steps.computation.model_setup import Subject


class Accumulation:
    """The gradients of the batches since the last update.

    Args:
        subject: says of how many; whose parameters, its optimizer's among them.
    """

    def __init__(self, subject: Subject) -> None:
        self._every = subject.accumulate
        self._subject = subject
        self._sums: dict[Tensor, Tensor] = {}
        self._count = 0

    def add(self) -> bool:
        """Takes the gradients of one batch, its share of the mean.

        Returns:
            Whether enough are together: the parameters then have the mean as their gradients.
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
        """How many batches wait for their update, and the sum of their gradients; None for a
        parameter without one."""
        return {
            "count": self._count,
            "sums": [self._sums.get(parameter) for parameter in self._subject.parameters()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state` gave."""
        self._count = int(state["count"])
        pairs = zip(self._subject.parameters(), state["sums"], strict=True)
        self._sums = {p: g.to(p.device, copy=True) for p, g in pairs if g is not None}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """For steps that train nothing: each is an update by itself, and afterwards is held what
        was held before."""
        before = self._every, self._sums, self._count
        self._every, self._sums, self._count = 1, {}, 0
        try:
            yield
        finally:
            self._every, self._sums, self._count = before
