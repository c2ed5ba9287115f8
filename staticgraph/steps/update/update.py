"""What follows a backward: gradients are clipped and the optimizer steps."""

from __future__ import annotations

import torch

from staticgraph.steps.computation.model_setup import Subject


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
