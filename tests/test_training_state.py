"""Saving the state before warming up costs no device memory, counted allocation by allocation."""

from __future__ import annotations

from collections import Counter

import torch
from support.alike import adam
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from staticgraph.steps.state.training_state import SavedTraining


class Allocations(TorchDispatchMode):
    """Bytes of every result with memory of its own, by device."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        returns_view = any(r.alias_info is not None for r in func._schema.returns)
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor) and not returns_view and id(value) not in given:
                self.nbytes[value.device.type] += value.numel() * value.element_size()
        return out


def test_nothing_is_saved_on_the_device(monkeypatch):
    """Parameters and Adam's two moments, 3 x 40,400 bytes, on a fake CUDA device: everything is
    saved on the host."""
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: None)
    with FakeTensorMode():
        model = nn.Linear(100, 100, device="meta")
        for name in ("weight", "bias"):
            shape = getattr(model, name).shape
            setattr(model, name, nn.Parameter(torch.empty(shape, device="cuda")))
        optimizer = adam(model, capturable=True)
        for parameter in model.parameters():
            optimizer.state[parameter] = {
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        with Allocations() as saving:
            SavedTraining(model, optimizer)
    assert saving.nbytes["cuda"] == 0
    assert saving.nbytes["cpu"] >= 3 * 4 * (100 * 100 + 100)
