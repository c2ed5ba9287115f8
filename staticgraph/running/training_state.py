"""Warming up and recording change nothing: what a run may touch is saved before and put back after.

Values return, addresses stay, so that a recording made in between goes on reading and writing the
same tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def train(model: torch.nn.Module) -> None:
    """Training mode, where the model as a whole is not in it; a model that is may hold layers
    frozen in evaluation mode, which stay so."""
    if not model.training:
        model.train()


class SavedTraining:
    """Parameters, buffers, gradients, optimizer state and random state, to be put back in place:
    addresses stay, values return. State that did not exist is put back to zeros."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self._tensors = [
            (tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())
        ]
        self._grads = [(parameter, parameter.grad) for parameter in model.parameters()]
        self._optimizer = optimizer
        states = {} if optimizer is None else optimizer.state
        self._states = {
            parameter: {k: v.clone() for k, v in state.items() if isinstance(v, Tensor)}
            for parameter, state in states.items()
        }
        self._flags = [(module, module.training) for module in model.modules()]
        self._random = torch.get_rng_state()
        devices = {p.device for p in model.parameters() if p.is_cuda}
        self._cuda_random = {device: torch.cuda.get_rng_state(device) for device in devices}

    @torch.no_grad()
    def restore(self) -> None:
        """Puts everything back."""
        for tensor, value in self._tensors:
            tensor.copy_(value)
        for parameter, grad in self._grads:
            parameter.grad = grad
        for module, flag in self._flags:
            module.training = flag
        if self._optimizer is not None:
            for parameter, state in self._optimizer.state.items():
                saved = self._states.get(parameter, {})
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        value.copy_(saved[name]) if name in saved else value.zero_()
        torch.set_rng_state(self._random)
        for device, state in self._cuda_random.items():
            torch.cuda.set_rng_state(state, device)


@contextmanager
def untouched(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Iterator[None]:
    """Puts everything back when the block ends; gradients are None inside it."""
    saved = SavedTraining(model, optimizer)
    for parameter in model.parameters():
        parameter.grad = None
    try:
        yield
    finally:
        saved.restore()
