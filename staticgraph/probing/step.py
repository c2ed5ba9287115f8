"""The step that a probe reads: what the runner does, with a stop between backward and update."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from staticgraph.batches.static_batch import StaticBatch
from staticgraph.sizes.capacity import Capacity

if TYPE_CHECKING:
    from staticgraph.probing.reading import Subject


class ProbeStep:
    """One step of a subject at one capacity: gradients freed, ``accumulate`` times forward and
    backward, then the optimizer. Without a loss, one evaluation without gradients."""

    def __init__(
        self,
        subject: Subject,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        capacity: Capacity,
    ) -> None:
        from staticgraph.runner.runner import (
            StaticGraphRunner,  # the runner looks here for its budget
        )

        self._model, self._optimizer = model, optimizer
        self._accumulate = subject.accumulate
        self._trains = subject.loss is not None
        self._runner = StaticGraphRunner(
            model,
            [capacity],
            mode="eager",
            loss=subject.loss,
            optimizer=optimizer,
            forward=subject.forward,
            autocast=subject.autocast,
            check_padding=False,  # what is read is a step
        )
        self._runner._computation.assume_rows()  # what is measured is a step alone

    def free_gradients(self) -> None:
        """No parameter has a gradient afterwards."""
        for parameter in self._model.parameters():
            parameter.grad = None

    def __call__(self, batch: StaticBatch, between: Callable[[], Any] | None = None) -> Any:
        """Runs the step; calls ``between`` after the backward and returns what that gave."""
        if not self._trains:
            self._runner.eval_step(batch)
            return None
        self._model.train()
        self.free_gradients()
        for _ in range(self._accumulate):
            self._runner._run("step", batch).backward()
        marked = between() if between is not None else None
        if self._optimizer is not None:
            self._optimizer.step()
        return marked
