"""Saving the state before warming up costs no device memory, counted allocation by allocation."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from staticgraph.steps.state.training_state import SavedTraining, untouched


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
        optimizer = torch.optim.Adam(model.parameters(), capturable=True)
        for parameter in model.parameters():
            optimizer.state[parameter] = {
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        with Allocations() as saving:
            SavedTraining(model, optimizer)
    assert saving.nbytes["cuda"] == 0
    assert saving.nbytes["cpu"] >= 3 * 4 * (100 * 100 + 100)


def test_a_look_leaves_what_waits_for_its_backward():
    """Untrained state stays as it is, including the version that autograd compares; attributes,
    rebound buffers and every random state are restored."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.seen = 1
    mean = model[1].running_mean
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    model(torch.randn(4, 3)).sum().backward()
    grads, before = [p.grad for p in model.parameters()], mean.clone()
    torch.set_rng_state(drawn[0])
    versions = [t._version for t in (*model.parameters(), mean)]
    with untouched(model, trained=False, attributes=True, seeded=True):
        model.seen, model[1].running_mean = 2, torch.ones(3)
        torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002
    assert model.seen == 1
    assert model[1].running_mean is mean
    assert [t._version for t in (*model.parameters(), mean)] == versions
    with untouched(model, trained=False):
        model(torch.randn(4, 3))
        assert not torch.equal(mean, before)
    assert torch.equal(mean, before)
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (random.getstate(), np.random.get_state()[2]) == drawn[1:]  # noqa: NPY002


def test_values_return_to_their_addresses():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)

    def step():
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()

    step()
    tensors = {**model.state_dict(), **{id(p): s for p, s in _buffers(optimizer)}}
    before = {name: (t.data_ptr(), t.clone()) for name, t in tensors.items()}
    grads = [parameter.grad for parameter in model.parameters()]
    random = torch.get_rng_state()
    with untouched(model, optimizer):
        assert all(parameter.grad is None for parameter in model.parameters())
        model.eval()
        step()
    for name, tensor in tensors.items():
        assert tensor.data_ptr() == before[name][0]
        assert torch.equal(tensor, before[name][1]), name
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert model[1].training


def _buffers(optimizer):
    return [(p, state["momentum_buffer"]) for p, state in optimizer.state.items()]
