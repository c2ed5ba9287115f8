"""Where torch and PyG store hooks; every kind that they can register is detected."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GINConv, MessagePassing

from staticgraph.internals import hooks


def nothing(*_):
    return None


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_each_kind_of_a_modules_hooks_is_seen(register):
    module = nn.ReLU()
    assert hooks.unhooked(module)
    assert hooks.user_unhooked(module)
    handle = getattr(module, register)(nothing)
    assert sum(len(getattr(module, kind)) for kind in hooks.MODULE_HOOKS) == 1
    assert not hooks.unhooked(module)
    assert not hooks.user_unhooked(module)
    handle.remove()
    assert hooks.unhooked(module)


def test_a_hook_of_this_library_is_no_users():
    module = nn.ReLU()
    module.register_forward_hook(hooks.message_hooks)
    assert not hooks.unhooked(module)
    assert hooks.user_unhooked(module)


def test_each_kind_of_hook_on_messages_is_seen():
    """Every kind that PyG can register."""
    names = [name for name in dir(MessagePassing) if name.endswith("_hook") and "_forward_" in name]
    names = [name for name in names if name.startswith("register_") and name[9:12] != "for"]
    assert len(names) == len(hooks.MESSAGE_HOOKS)
    for name in names:
        conv = GINConv(nn.ReLU())
        assert hooks.message_hooks(conv) is None
        getattr(conv, name)(nothing)
        assert hooks.message_hooks(conv) == name.removeprefix("register_"), name


def test_hooks_of_what_is_saved_are_seen():
    seen = []

    def part(x):
        seen.append(hooks.saves_are_hooked())
        return x.sin()

    x = torch.ones(1, requires_grad=True)
    part(x)
    checkpoint(part, x, use_reentrant=False)
    assert seen == [False, True]
