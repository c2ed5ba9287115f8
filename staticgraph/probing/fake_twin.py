"""A model and its optimizer over fake tensors: every shape, no bytes, no arithmetic.

A probe's step runs on the twin, so that the real model is neither touched nor doubled. Its fake
tensors claim to be on the CPU even where the model is on CUDA: fake CUDA tensors that require grad
abort the process in a build of torch without CUDA, unless it is the process of a dry run.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout

# Not part of torch's public API, but named in its documentation of fake tensors. A torch version
# without it fails here, at import, by name.
from staticgraph.internals.fakes import FakeTensorMode


def fake_mode() -> FakeTensorMode:
    """A mode in which tensors have only shapes.

    Real tensors that a module keeps outside its parameters and buffers are treated as their shapes.
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_twin(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    mode: FakeTensorMode,
    device: str = "cpu",
) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
    """Copies of a model and its optimizer over fake tensors of a device.

    An optimizer is copied as pickle would, so neither hooks nor a scheduler's wrapper of ``step``,
    which would step the real one, are copied with it.

    Raises:
        ValueError: a lazy module's parameters have no shape yet, or the optimizer has parameters
            that are not the model's.
    """
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(
                f"parameter {name} has no shape yet: run the lazy module once on a batch first"
            )
        like = _like(parameter, mode, device)
        memo[id(parameter)] = torch.nn.Parameter(like, requires_grad=parameter.requires_grad)
    if optimizer is not None:
        for group in optimizer.param_groups:
            if strangers := [p for p in group["params"] if id(p) not in memo]:
                raise ValueError(
                    f"the optimizer has a parameter of shape {list(strangers[0].shape)} that the "
                    "model has not: give the optimizer that was made with model.parameters()"
                )
    tensors = [*model.buffers(), *state_of(optimizer)]
    memo |= {id(tensor): _like(tensor, mode, device) for tensor in tensors}
    twin, stepper = copy.deepcopy((model, optimizer), memo)
    if stepper is not None and device == "cpu":
        for group in stepper.param_groups:
            group.update(_on_the_host(group))
    return twin, stepper


def fake_batch(layout: SlotLayout, device: Any = "cpu") -> StaticBatch:
    """A batch with the arrays of a slot; must be called inside the fake mode."""
    tensors = {
        entry.name: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype.name), device=device)
        for entry in layout.entries
    }
    return StaticBatch(layout, tensors)


def state_of(optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """The tensors of an optimizer's current state."""
    states = optimizer.state.values() if optimizer is not None else ()
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def _on_the_host(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options without those that require a device: a fused kernel (which needs no extra
    memory), step counters on the device, a learning rate in a tensor."""
    options = {k: float(v) if isinstance(v, Tensor) else v for k, v in group.items()}
    if options.get("fused"):
        options["foreach"] = False
    return {**options, **{k: False for k in ("fused", "capturable") if k in options}}


def _like(tensor: Tensor, mode: FakeTensorMode, device: str) -> Tensor:
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
