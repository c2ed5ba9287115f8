"""What follows a backward: gradients clipped, the optimizer stepped."""

from __future__ import annotations

import torch


class Update:
    """The end of a training step.

    Args:
        model: its gradients are clipped, all together.
        optimizer: over its parameters; None where nothing is trained.
        clip_norm: the largest norm of all gradients; larger ones are scaled to it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        clip_norm: float | None = None,
    ) -> None:
        self._model = model
        self.optimizer = optimizer
        self._clip_norm = clip_norm

    def zero_grad(self) -> None:
        """No parameter of the model or the optimizer has a gradient afterwards, so that a backward
        writes and adds nothing."""
        for parameter in self._model.parameters():
            parameter.grad = None
        for group in () if self.optimizer is None else self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def __call__(self) -> None:
        """Clips without reading the norm on the host, then steps."""
        assert self.optimizer is not None
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        self.optimizer.step()
