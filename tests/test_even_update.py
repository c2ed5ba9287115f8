"""Recorded updates give torch's fused optimizers pieces of even size: the same bits."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import same
from support.gine_net import CAPACITIES, Net, bce
from support.runners import made_runner
from torch.utils._python_dispatch import TorchDispatchMode

import staticgraph as sg
from staticgraph.recording import recorded_work
from staticgraph.recording.recorded_work import PIECE, EvenUpdate


class Noted(TorchDispatchMode):
    """Notes the sizes of the parameters that fused optimizers receive."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_fused_adam" in func.name():
            self.sizes.append([parameter.numel() for parameter in args[0]])
        return func(*args, **(kwargs or {}))


def parameters():
    sizes = [(3,), (5 * PIECE + 7,), (2, PIECE), (), (PIECE,), (0, 4)]
    drawn = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    return [*drawn, torch.nn.Parameter(torch.randn(300, 60).t())]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "weight_decay": 0.1}], ids=str)
def test_an_update_in_pieces_has_the_same_bits(kind, options):
    ours = parameters()
    theirs = copy.deepcopy(ours)
    updates = [kind(each, lr=torch.tensor(0.01), fused=True, **options) for each in (ours, theirs)]
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        with Noted() as noted, EvenUpdate():
            updates[0].step()
        updates[1].step()
        assert noted.sizes == [[*[PIECE] * 5, 7, 18000, *[PIECE] * 3, 3, 1, 0]]
    assert same(ours, theirs)
    assert same(updates[0].state_dict()["state"], updates[1].state_dict()["state"])


def test_a_recorded_step_updates_in_pieces(hiv, monkeypatch):
    whole, called = recorded_work.in_pieces, []
    monkeypatch.setattr(recorded_work, "in_pieces", lambda c: called.append(len(c[0])) or whole(c))
    plan = sg.BucketPlan.of(CAPACITIES[:1], batch_size=30)
    model = Net(0.0)
    adam = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), fused=True, capturable=True)
    made_runner(model, plan, "cuda-graph", loss=bce, optimizer=adam).warmup(hiv)
    assert set(called) == {sum(1 for _ in model.parameters())}
