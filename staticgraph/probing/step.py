"""The step that a probe reads: what the runner does, with a hook between backward and update."""

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
    """One step of a subject: forward, backward and update, or an evaluation.

    Gradients are freed, then forward and backward run ``accumulate`` times, then the optimizer.
    Without a loss, it is one evaluation without gradients. Attention paths are
    chosen for ``device`` where the tensors stand in for those of another device.

    Attributes:
        widths: of the dense blocks that layers requested in the last forward.
    """

    def __init__(self, subject: Subject, accumulate: int, device: str | None = None) -> None:
        self._device = device
        self._model, self._optimizer = subject.model, subject.optimizer
        self._accumulate = accumulate
        self._trains = subject.loss is not None
        self._computation = Computation(subject)
        self._computation.assume_rows()  # only the step itself is measured
        self.widths: tuple[int, ...] = ()

    def free_gradients(self) -> None:
        """Sets every parameter's gradient to None."""
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
        """Runs the step; calls ``between`` after the backward and returns its result."""
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
            self._loss(batch).backward()  # not bound to a name, so it is freed before the update
        marked = between() if between is not None else None
        if self._optimizer is not None:
            self._optimizer.step()
        return marked
