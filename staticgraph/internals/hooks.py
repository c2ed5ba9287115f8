"""Where torch modules and PyG layers store their hooks, listed once for all callers."""

from __future__ import annotations

import torch

__all__ = ["MESSAGE_HOOKS", "MODULE_HOOKS", "message_hooks", "unhooked", "user_unhooked"]

# Attributes in which modules store hooks.
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Attributes in which PyG layers store hooks on their messages.
MESSAGE_HOOKS = tuple(
    f"_{what}_forward{when}_hooks"
    for what in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for when in ("", "_pre")
)


def unhooked(module: torch.nn.Module) -> bool:
    """Returns whether a module has no hooks, so that doing its work without calling it skips
    none."""
    return not any(getattr(module, kind) for kind in MODULE_HOOKS)


def user_unhooked(module: torch.nn.Module) -> bool:
    """Returns whether a module has no hooks other than this library's own, which observe a model in
    its checks and may be skipped."""
    for kind in MODULE_HOOKS:
        for hook in getattr(module, kind).values():
            if not str(getattr(hook, "__module__", "")).startswith("staticgraph."):
                return False
    return True


def message_hooks(conv: torch.nn.Module) -> str | None:
    """Returns the first kind of message hook of a PyG layer, such as ``message_forward_hook``, or
    None."""
    for kind in MESSAGE_HOOKS:
        if getattr(conv, kind):
            return kind.removeprefix("_").removesuffix("s")
    return None
