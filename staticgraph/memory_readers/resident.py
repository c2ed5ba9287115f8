"""Bytes of a model that are there at any capacity: parameters, buffers, gradients, state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from staticgraph.memory_model import Resident
from staticgraph.memory_readers.fake_twin import fake_mode, fake_model, fake_optimizer
from staticgraph.memory_readers.live_storages import LiveStorages
from staticgraph.memory_readers.reading import Subject


def resident_bytes(subject: Subject) -> Resident:
    """What a model in training keeps, once its optimizer has stepped; read off a fake twin."""
    parameters = list(subject.model.parameters())
    trained = [p for p in parameters if p.requires_grad] if subject.loss is not None else []
    optimizer = 0
    if subject.optimizer is not None:
        mode = fake_mode()
        _, twins = fake_model(subject.model, mode)
        twin = fake_optimizer(subject.optimizer, twins, mode)
        live = LiveStorages()
        with mode, live:
            for group in twin.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.empty_like(parameter)
            live.reads_allowed = True
            twin.step()
        optimizer = _distinct_bytes(_tensors_in(twin.state))
    return Resident(
        _distinct_bytes(parameters),
        _distinct_bytes(subject.model.buffers()),
        _distinct_bytes(trained),
        optimizer,
    )


def _tensors_in(state: Any) -> Iterator[Tensor]:
    return (v for values in state.values() for v in values.values() if isinstance(v, Tensor))


def _distinct_bytes(tensors: Iterable[Tensor]) -> int:
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
