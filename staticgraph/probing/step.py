"""The step that a probe reads: what the runner does, with a stop between backward and update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.nn.context.choosing import choosing
from staticgraph.nn.context.present import present
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_state import evaluating


class ProbeStep:
    """One step of a subject: gradients freed, ``accumulate`` times forward and backward, then the
    optimizer. Without a loss, one evaluation without gradients. Kernels are chosen as for large
    batches, and for ``device`` where the tensors stand for those of another.

    Attributes:
        widths: of the dense blocks that layers asked for in the last forward.
    """

    def __init__(self, subject: Subject, accumulate: int, device: str | None = None) -> None:
        self._device = device
        self._model, self._optimizer = subject.model, subject.optimizer
        self._accumulate = accumulate
        self._trains = subject.loss is not None
        self._computation = Computation(subject)
        self._computation.assume_rows()  # what is measured is a step alone
        self.widths: tuple[int, ...] = ()

    def free_gradients(self) -> None:
        """No parameter has a gradient afterwards."""
        for parameter in self._model.parameters():
            parameter.grad = None

    def _loss(self, batch: StaticBatch) -> torch.Tensor:
        with self._computation.active():
            return self._run_forward("step", batch)

    def _run_forward(self, work: str, batch: StaticBatch) -> torch.Tensor:
        result = self._computation.run(work, batch, keep=True)
        binding = present()
        assert binding is not None
        self.widths = tuple(sorted({width for _, width in binding.blocks}))
        return result

    def __call__(self, batch: StaticBatch, between: Callable[[], Any] | None = None) -> Any:
        """Runs the step; calls ``between`` after the backward and returns what that gave."""
        with choosing(self._device):
            return self._run(batch, between)

    def _run(self, batch: StaticBatch, between: Callable[[], Any] | None) -> Any:
        if not self._trains:
            with evaluating(self._model), self._computation.active():
                self._run_forward("forward", batch)
            return None
        self._model.train()
        self.free_gradients()
        for _ in range(self._accumulate):
            self._loss(batch).backward()  # held by no name: the update comes after it is gone
        marked = between() if between is not None else None
        if self._optimizer is not None:
            self._optimizer.step()
        return marked
