"""Where torch modules and PyG layers store their hooks, listed once for all callers.

Calls of ``torch.utils.checkpoint``, for which torch has no hook, are observed as they begin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint

__all__ = [
    "MESSAGE_HOOKS",
    "MODULE_HOOKS",
    "checkpoints_told",
    "has_pyg",
    "message_hooks",
    "saves_are_hooked",
    "unhooked",
    "user_unhooked",
]

# Where a non-reentrant checkpoint begins: the first of these that a release has (2.15 moved it; the
# older name calls the newer one there).
_BEGINNINGS = (
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)


@functools.cache
def has_pyg() -> bool:
    """Returns whether PyG can be imported, without which only torch's own layers are known."""
    try:
        import torch_geometric  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def checkpoints_told(tell: Callable[[], None]) -> Iterator[None]:
    """Calls ``tell`` whenever a checkpoint begins in the block, in either of its two forms.

    Raises:
        AttributeError: this torch has neither entry point.
    """
    module = torch.utils.checkpoint
    function: Any = module.CheckpointFunction
    name = next((name for name in _BEGINNINGS if hasattr(module, name)), _BEGINNINGS[0])
    stock = getattr(module, name)

    def telling(inner: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps an entry point of torch's checkpoints to call ``tell`` first."""

        def call(*args: Any, **kwargs: Any) -> Any:
            """Calls ``tell``, then the original."""
            tell()
            return inner(*args, **kwargs)

        return call

    setattr(module, name, telling(stock))
    function.apply = staticmethod(telling(function.apply))
    try:
        yield
    finally:
        setattr(module, name, stock)
        del function.apply


def saves_are_hooked() -> bool:
    """Returns whether tensors saved for backward go through hooks, as in a checkpoint, which runs a
    part of the forward again and counts what that saves."""
    autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    return autograd._top_saved_tensors_default_hooks(True) is not None


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
    """Returns the first kind of message hook of a PyG layer, such as ``message_forward_hook``; None
    without one, and for other modules."""
    for kind in MESSAGE_HOOKS:
        if getattr(conv, kind, None):
            return kind.removeprefix("_").removesuffix("s")
    return None
