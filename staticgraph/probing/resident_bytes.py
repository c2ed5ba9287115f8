"""Bytes of a model that exist at any capacity: parameters, buffers, gradients, state."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from staticgraph.memory.memory_model import ResidentBytes
from staticgraph.probing.fake_twin import fake_mode, fake_twin, state_of
from staticgraph.probing.live_storages import LiveStorages
from staticgraph.steps.computation.model_setup import Subject


def resident_bytes(subject: Subject) -> ResidentBytes:
    """The bytes that a model in training keeps after a step, computed on a fake twin."""
    parameters = list(subject.model.parameters())
    trained = [p for p in parameters if p.requires_grad] if subject.loss is not None else []
    optimizer = 0
    if subject.optimizer is not None:
        mode = fake_mode()
        _, twin = fake_twin(subject.model, subject.optimizer, mode)
        assert twin is not None
        live = LiveStorages()
        with mode, live:
            for group in twin.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.empty_like(parameter)
            live.reset_peak(update=True)
            twin.step()
        optimizer = state_bytes(twin)
    return ResidentBytes(
        distinct_bytes(parameters),
        distinct_bytes(subject.model.buffers()),
        distinct_bytes(trained),
        optimizer,
    )


def state_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    """Bytes of an optimizer's current state."""
    return distinct_bytes(state_of(optimizer))


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of tensors, each counted once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
