"""An optimizer whose step can be recorded: what must hold, and what may still change.

A recording keeps numbers as they were. A step count read on the host would stand still, and a
learning rate given as a Python float would never fall. So the counts must be tensors
(``capturable=True``), the learning rate becomes a tensor at a fixed address that schedulers fill,
and any other setting that changes later is an error, not a silent no-op.

Any optimizer is saved and restored as it is: its state, its settings, and the attributes of its
class. Values are written back into the tensors and containers that hold them. Some optimizers count
in their settings (``group["k"]``), some keep slow weights or another optimizer among their
attributes; undoing a step must restore those, too.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from staticgraph.errors import NotStatic

REMEDY = (
    "give the runner an optimizer without a state yet, which it makes so itself, or call "
    "staticgraph.steps.state.recordable_optimizer.make_capturable(optimizer)"
)

# The optimizers that torch has as one kernel.
HAVE_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)

# Optimizers whose state begins as zeros, so that zeroing it undoes a warm-up exactly.
STARTS_AT_ZERO = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.SGD,
)


def parameters_of(optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """Returns what an optimizer steps, in its order."""
    groups = () if optimizer is None else optimizer.param_groups
    return [parameter for group in groups for parameter in group["params"]]


def make_recordable(optimizer: torch.optim.Optimizer | None) -> None:
    """Makes an optimizer that has not stepped yet recordable, in place.

    Sets ``capturable=True``, and ``fused=True`` where torch has it and the user requested no other
    form. An optimizer with state is left as it is, since its state may be relied on in that form;
    so is one that cannot be recorded at all. :func:`check_recordable` then reports the reason.
    """
    if optimizer is None or optimizer.state or not starts_at_zero(optimizer):
        return
    for group in optimizer.param_groups:
        if type(optimizer) in HAVE_FUSED and _can_be_fused(group):
            group["fused"], group["foreach"] = True, False
        # On a CPU torch has capturable only in the fused form.
        on_device = all(parameter.device.type != "cpu" for parameter in group["params"])
        if "capturable" in group and (group.get("fused") or on_device):
            group["capturable"] = True


def _can_be_fused(group: dict[str, Any]) -> bool:
    other_form = group.get("fused") is False or group.get("foreach") or group.get("differentiable")
    return not other_form and all(parameter.is_floating_point() for parameter in group["params"])


def make_capturable(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Sets ``capturable=True`` in place (``fused=True`` for SGD).

    Also moves the step counts to the parameters' device.

    Raises:
        NotStatic: the optimizer has no such option.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        elif isinstance(optimizer, torch.optim.SGD):
            group["fused"], group["foreach"] = True, False
        else:
            raise NotStatic(
                f"{type(optimizer).__name__} has no capturable form: use Adam, AdamW, Adamax, "
                "RMSprop or SGD, or scope='forward_backward'"
            )
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if isinstance(step, Tensor):
                optimizer.state[parameter]["step"] = step.to(parameter.device)
    return optimizer


def starts_at_zero(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a state of zeros equals no state, so that zeroing it undoes a first step."""
    return type(optimizer) in STARTS_AT_ZERO and not any(
        group.get("momentum") and group.get("dampening") for group in optimizer.param_groups
    )


def check_recordable(optimizer: torch.optim.Optimizer) -> None:
    """Checks that an optimizer's step can be inside a recording.

    Raises:
        NotStatic: it cannot; the message says what to do.
    """
    kind = type(optimizer).__name__
    if type(optimizer) not in STARTS_AT_ZERO:
        raise NotStatic(
            f"{kind} cannot be recorded inside the step: use Adam, AdamW, Adamax, RMSprop or "
            "SGD, or scope='forward_backward', which steps it outside the recording"
        )
    for group in optimizer.param_groups:
        if group.get("momentum") and group.get("dampening"):
            raise NotStatic(
                f"{kind} with dampening treats its first step differently: use dampening=0, "
                "or scope='forward_backward'"
            )
        if "capturable" in group and not group["capturable"]:
            raise NotStatic(
                f"{kind} counts its steps on the host, so a recording would repeat the same "
                f"step for ever: make it with capturable=True, {REMEDY}"
            )
        if type(optimizer) is torch.optim.SGD and not group["fused"]:
            raise NotStatic(
                "SGD reads its learning rate on the host unless it is fused: make it with "
                f"fused=True, {REMEDY}"
            )


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
        self._attributes = {
            name: value
            for name, value in vars(optimizer).items()
            if name not in _OF_TORCH and not name.startswith("_optimizer_")
        }
        for value in self._attributes.values():
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
        attributes = vars(self._optimizer)
        for name, value in self._attributes.items():
            if attributes.get(name) is not value:
                attributes[name] = value
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
