"""An optimizer as it is: its state, its settings, and the attributes of its class.

Values are written back into the tensors and containers that hold them. Some optimizers count in
their settings (``group["k"]``), some keep slow weights or another optimizer among their attributes;
undoing a step must restore those, too.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from staticgraph.steps.state.recordable_optimizer import starts_at_zero

_OF_TORCH = ("state", "param_groups", "defaults")


class SavedOptimizer:
    """Everything that an optimizer's step may touch, except the parameters.

    State that did not exist is set to zeros where zeros are its initial values, so that a recording
    can go on writing it, and removed otherwise.

    Args:
        optimizer: any.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._states = {
            parameter: {name: on_host(value) for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        }
        self._groups = [
            (group, {name: on_host(value) for name, value in group.items() if name != "params"})
            for group in optimizer.param_groups
        ]
        self._kept = _Kept()
        self._own = {
            name: value
            for name, value in vars(optimizer).items()
            if name not in _OF_TORCH and not name.startswith("_optimizer_")
        }
        for value in self._own.values():
            self._kept.note(value)

    @torch.no_grad()
    def restore(self) -> None:
        """Restores everything."""
        self._restore_states()
        for group, saved in self._groups:
            for name, value in saved.items():
                now = group.get(name)
                if isinstance(now, Tensor) and isinstance(value, Tensor):
                    now.copy_(value)
                elif not isinstance(now, Tensor) and now != value:  # a recording reads its tensors
                    group[name] = value
        own = vars(self._optimizer)
        for name, value in self._own.items():
            if own.get(name) is not value:
                own[name] = value
        self._kept.restore()

    def _restore_states(self) -> None:
        optimizer = self._optimizer
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


class _Kept:
    """The tensors, containers and optimizers among an optimizer's attributes."""

    def __init__(self) -> None:
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._optimizers: list[SavedOptimizer] = []

    def note(self, value: Any) -> None:
        """Keeps a value and everything in it."""
        if isinstance(value, torch.optim.Optimizer):
            self._optimizers.append(SavedOptimizer(value))
        elif isinstance(value, Tensor):
            if not isinstance(value, nn.Parameter) and value.is_leaf:
                self._tensors.append((value, on_host(value)))
        elif isinstance(value, dict):
            self._containers.append((value, dict(value)))
            for item in value.values():
                self.note(item)
        elif isinstance(value, list | deque):
            self._containers.append((value, list(value)))
            for item in value:
                self.note(item)
        elif isinstance(value, tuple):
            for item in value:
                self.note(item)

    def restore(self) -> None:
        """Restores what was noted."""
        for container, items in self._containers:
            container.clear()
            if isinstance(container, dict):
                container.update(items)
            else:
                container.extend(items)
        for tensor, value in self._tensors:
            tensor.copy_(value)
        for optimizer in self._optimizers:
            optimizer.restore()


def on_host(value: Any) -> Any:
    """Returns a copy of a value that takes no device memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return copy.deepcopy(value)
