"""Where modules of torch, and layers of PyG, keep hooks: one list of each, for all who look."""

from __future__ import annotations

import torch

__all__ = ["MESSAGE_HOOKS", "MODULE_HOOKS", "message_hooks", "unhooked", "user_unhooked"]

# Where modules keep hooks.
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Where PyG's layers keep hooks on their messages.
MESSAGE_HOOKS = tuple(
    f"_{what}_forward{when}_hooks"
    for what in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for when in ("", "_pre")
)


def unhooked(module: torch.nn.Module) -> bool:
    """Whether doing a module's work without calling it skips no hook."""
    return not any(getattr(module, kind) for kind in MODULE_HOOKS)


def user_unhooked(module: torch.nn.Module) -> bool:
    """The same, where the hooks with which this library itself looks on, in its checks of a model,
    may be skipped."""
    for kind in MODULE_HOOKS:
        for hook in getattr(module, kind).values():
            if not str(getattr(hook, "__module__", "")).startswith("staticgraph."):
                return False
    return True


def message_hooks(conv: torch.nn.Module) -> str | None:
    """The first kind of hook that a layer of PyG has on its messages, as ``message_forward_hook``;
    None where it has none."""
    for kind in MESSAGE_HOOKS:
        if getattr(conv, kind):
            return kind.removeprefix("_").removesuffix("s")
    return None
