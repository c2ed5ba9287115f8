"""A model and its optimizer over fake tensors: every shape, no bytes, no arithmetic.

A probe's step runs on the twin, so that the real model is neither touched nor doubled. Fake tensors
claim to be on the CPU even where the model is on CUDA: fake CUDA tensors that require grad abort
the process in a build of torch without CUDA.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

# Not part of torch's public API, but named in its documentation of fake tensors. A torch version
# without it fails here, at import, by name.
from staticgraph.internals.fakes import FakeTensorMode


def fake_mode() -> FakeTensorMode:
    """A mode in which tensors have only shapes.

    Real tensors that a module keeps outside its parameters and buffers are treated as their shapes.
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_model(
    model: torch.nn.Module, mode: FakeTensorMode
) -> tuple[torch.nn.Module, dict[Tensor, Tensor]]:
    """A copy of a model over fake tensors, and the map from the model's parameters to its own.

    Raises:
        ValueError: a lazy module's parameters have no shape yet.
    """
    memo: dict[int, Any] = {}
    twins: dict[Tensor, Tensor] = {}
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(
                f"parameter {name} has no shape yet: run the lazy module once on a batch first"
            )
        twin = torch.nn.Parameter(_like(parameter, mode), requires_grad=parameter.requires_grad)
        memo[id(parameter)] = twins[parameter] = twin
    for buffer in model.buffers():
        memo[id(buffer)] = _like(buffer, mode)
    return copy.deepcopy(model, memo), twins


def fake_optimizer(
    optimizer: torch.optim.Optimizer, twins: dict[Tensor, Tensor], mode: FakeTensorMode
) -> torch.optim.Optimizer:
    """A copy of an optimizer over the twins, with fake state of the same shapes.

    An optimizer is copied as pickle would, so neither hooks nor a scheduler's wrapper of ``step``,
    which would step the real one, are copied with it.

    Raises:
        ValueError: the optimizer has parameters that are not the model's.
    """
    memo: dict[int, Any] = {id(parameter): twin for parameter, twin in twins.items()}
    for group in optimizer.param_groups:
        if strangers := [p for p in group["params"] if p not in twins]:
            raise ValueError(
                f"the optimizer has a parameter of shape {list(strangers[0].shape)} that the model "
                "has not: give the optimizer that was made with model.parameters()"
            )
    for values in optimizer.state.values():
        memo |= {id(v): _like(v, mode) for v in values.values() if isinstance(v, Tensor)}
    twin = copy.deepcopy(optimizer, memo)
    for group in twin.param_groups:
        group.update(_on_the_host(group))
    return twin


def _on_the_host(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options without those that require a device: a fused kernel (which needs no extra
    memory), step counters on the device, a learning rate in a tensor."""
    options = {k: float(v) if isinstance(v, Tensor) else v for k, v in group.items()}
    if options.get("fused"):
        options["foreach"] = False
    return {**options, **{k: False for k in ("fused", "capturable") if k in options}}


def _like(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
