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
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import version_of

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
    given = group.get("fused") is False or group.get("foreach") or group.get("differentiable")
    return not given and all(parameter.is_floating_point() for parameter in group["params"])


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


class RecordableOptimizer:
    """Watches one optimizer for a recorder.

    Raises:
        NotStatic: the optimizer's step cannot be recorded; the message says what to do.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._replaced = False
        check_recordable(optimizer)
        self._given = [group["lr"] for group in optimizer.param_groups]
        self._rates = [self._as_tensor(group) for group in optimizer.param_groups]
        self._versions = [version_of(rate) for rate in self._rates]
        # What a step reads. The rest of a group belongs to schedulers, such as initial_lr.
        self._names = [name for name in optimizer.defaults if name != "lr"]
        self._settings = [self._of(group) for group in optimizer.param_groups]
        self._hook = optimizer.register_load_state_dict_post_hook(self._note_replaced)

    def _of(self, group: dict[str, Any]) -> list[Any]:
        return list(map(group.get, self._names))

    def _as_tensor(self, group: dict[str, Any]) -> Tensor:
        rate = group["lr"]
        device = group["params"][0].device
        if not isinstance(rate, Tensor):
            rate = torch.tensor(float(rate), dtype=torch.float32, device=device)
        group["lr"] = rate.to(device)
        return group["lr"]

    def _note_replaced(self, _: torch.optim.Optimizer) -> None:
        self._replaced = True

    def before_replay(self) -> None:
        """Copies a changed learning rate to its address; refuses any other change.

        Raises:
            NotStatic: a setting or the state was replaced since the recording.
        """
        if self._replaced:
            raise NotStatic(
                "the optimizer's state was exchanged (load_state_dict) after its step was "
                "recorded, which would go on with the old one: load it before warmup(), or call "
                "warmup() again"
            )
        if len(self._optimizer.param_groups) != len(self._rates):
            raise NotStatic(
                "the optimizer was given another parameter group after its step was recorded, "
                "which would leave it out: add it before warmup(), or call warmup() again"
            )
        # torch's schedulers warn unless they see a step; Python does not see a replay.
        self._optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]
        for group, rate, noted in zip(
            self._optimizer.param_groups, self._rates, self._settings, strict=True
        ):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate
            # Usually the same objects, which saves comparing values.
            if not all(map(is_, map(group.get, self._names), noted)):
                self._compare(group, noted)

    def _compare(self, group: dict[str, Any], noted: list[Any]) -> None:
        """Refuses other values; equal values in other objects become the ones to expect next."""
        present = self._of(group)
        pairs = zip(self._names, present, noted, strict=True)
        changed = [name for name, now, before in pairs if _differs(now, before)]
        if changed:
            cycled = not {"betas", "momentum"}.isdisjoint(changed)
            raise NotStatic(
                f"the optimizer's {', '.join(sorted(changed))} changed after its step was "
                "recorded; only lr may: call warmup() again, or use scope='forward_backward'"
                + (" (a OneCycleLR or CyclicLR needs cycle_momentum=False)" if cycled else "")
            )
        noted[:] = present

    def close(self) -> None:
        """Stops watching, and turns a learning rate that nobody wrote to back into a number.

        Reads nothing from the device, which may refuse after a failed capture.
        """
        self._hook.remove()
        for group, given, rate, version in zip(
            self._optimizer.param_groups, self._given, self._rates, self._versions, strict=True
        ):
            unchanged = group["lr"] is rate and version_of(rate) == version
            if unchanged and not isinstance(given, Tensor):
                group["lr"] = given


def _differs(now: Any, noted: Any) -> bool:
    """Whether a setting was replaced.

    A tensor's value is not compared, since the recording reads it in place, and comparing it here
    would make the host wait for the device.
    """
    if isinstance(now, tuple | list) and isinstance(noted, tuple | list):
        return len(now) != len(noted) or any(map(_differs, now, noted))
    if isinstance(now, Tensor) or isinstance(noted, Tensor):
        return now is not noted
    return bool(now != noted)


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
