"""Warming up and recording change nothing: what a run may touch is saved before and put back after.

Values return, addresses stay, so that a recording made in between goes on reading and writing the
same tensors. What is saved is kept on the host: beside a recording's pool the device may have no
room for parameters and optimizer state a second time, and to carry what a GNN has across the bus is
short beside a compilation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from staticgraph.steps.recordable_optimizer import starts_at_zero


def train(model: torch.nn.Module) -> None:
    """Training mode, where the model as a whole is not in it; a model that is may hold layers
    frozen in evaluation mode, which stay so."""
    if not model.training:
        model.train()


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module's flag is put back."""
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in trained:
            module.training = True


class SavedTraining:
    """Parameters, buffers, gradients, optimizer state and random state, to be put back in place:
    addresses stay, values return. Optimizer state that did not exist is put back to zeros where
    those are its first values, so that a recording may go on writing it, and dropped elsewhere."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self._tensors = [
            (tensor, _on_host(tensor)) for tensor in (*model.parameters(), *model.buffers())
        ]
        self._grads = [(parameter, parameter.grad) for parameter in model.parameters()]
        self._optimizer = optimizer
        states = {} if optimizer is None else optimizer.state
        self._states = {
            parameter: {name: _on_host(value) for name, value in state.items()}
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
            self._restore_states(self._optimizer)
        torch.set_rng_state(self._random)
        for device, state in self._cuda_random.items():
            torch.cuda.set_rng_state(state, device)

    def _restore_states(self, optimizer: torch.optim.Optimizer) -> None:
        zeros = starts_at_zero(optimizer)
        for parameter, state in list(optimizer.state.items()):
            saved = self._states.get(parameter)
            if saved is None and not zeros:
                del optimizer.state[parameter]
                continue
            for name, value in state.items():
                if not isinstance(value, Tensor):
                    state[name] = (saved or {}).get(name, value)
                elif saved is not None and isinstance(saved.get(name), Tensor):
                    value.copy_(saved[name])
                else:
                    value.zero_()


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return copy.deepcopy(value)


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
    except BaseException as error:
        try:
            saved.restore()
        except Exception as further:  # the first error is the one that says what happened
            error.add_note(
                "what was trained could not be put back either: "
                f"{type(further).__name__}: {further}"
            )
        raise
    saved.restore()
