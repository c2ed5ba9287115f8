"""Dynamo: its switches, counters and errors, and what it has traced and is tracing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch._dynamo import eval_frame, mark_static_address
from torch._dynamo import guards as made_guards
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import counters
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
)
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.module_tracker import ModuleTracker

from staticgraph.internals.dispatch import undispatched

__all__ = [
    "UNTRACEABLE",
    "ConstantSource",
    "TorchDynamoException",
    "Traced",
    "TracingContext",
    "as_usual",
    "counters",
    "drop_guards",
    "forget_compiled",
    "guards_not_timed",
    "mark_static_address",
    "switched",
    "traced",
    "unwatched",
    "watched",
]

# What a first call of torch.compile's function raises if it cannot trace: its own errors, and those
# of sizes that are data, which some operations let through.
UNTRACEABLE: tuple[type[Exception], ...] = (
    TorchDynamoException,
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
)


class Traced(NamedTuple):
    """The result of tracing a function with Dynamo.

    Attributes:
        holds: takes the function's locals by name and returns whether all guards hold.
        run: the function as rewritten by Dynamo around the compiled graph; takes the same arguments
            and checks no guards.
    """

    holds: Callable[[dict[str, Any]], bool]
    run: Callable[..., Any]


def traced(function: FunctionType) -> Traced | None:
    """Returns what Dynamo made of a function that it traced exactly once; None otherwise."""
    entries = eval_frame._debug_get_cache_entry_list(function.__code__)
    if len(entries) != 1:
        return None
    identity = (function.__name__, function.__defaults__, function.__closure__)
    run = FunctionType(entries[0].code, function.__globals__, *identity)
    return Traced(entries[0].guard_manager.root.check, run)


def watched() -> bool:
    """Returns whether a mode is active that sees every operation, such as ``FlopCounterMode``.

    torch's own tracing modes do not count. Such a mode is visible in every tensor, so guards fail
    and nothing is traced.
    """
    return any(not mode.is_infra_mode() for mode in _get_current_dispatch_mode_stack())


@contextmanager
def unwatched() -> Iterator[None]:
    """Disables such modes inside the block, along with the global module hooks that they install.

    With these hooks, modes track which module is running; torch 2.11 guards on their absence.
    """
    with undispatched(), ExitStack() as stack:
        for registry in (hooks._global_forward_pre_hooks, hooks._global_forward_hooks):
            if any(_tracks(hook) for hook in registry.values()):
                stack.callback(registry.update, dict(registry))  # keeps their order
                stack.callback(registry.clear)
                others = {key: hook for key, hook in registry.items() if not _tracks(hook)}
                registry.clear()
                registry.update(others)
        yield


def _tracks(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), ModuleTracker)


def as_usual() -> bool:
    """Returns whether ``torch.compiler.set_stance`` has its default."""
    return eval_frame._stance.stance == "default"


def drop_guards(dropped: Callable[[str, str], bool]) -> int:
    """Discards guards before any is built, and returns how many are left; called by a backend.

    A guard is discarded if ``dropped`` returns true for its kind and name, such as
    ``("TENSOR_MATCH", "L['x']")``, or if it repeats another guard.
    """
    guards = TracingContext.get().guards_context.dynamo_guards
    names = set()
    for guard in list(guards):
        kind, name = guard.create_fn_name(), guard.name
        what = (kind, name, _options(guard.create_fn))
        if dropped(kind, name) or what in names:
            guards.inner.discard(guard)
        names.add(what)
    return len(guards)


def _options(create: Any) -> Any:
    """Returns what distinguishes guards of one kind on one name."""
    if not isinstance(create, partial):
        return None
    options = (create.args, tuple(sorted(create.keywords.items())))
    try:
        hash(options)
    except TypeError:
        return id(create)
    return options


def forget_compiled() -> None:
    """Discards everything that Dynamo traced in this process."""
    torch._dynamo.reset()


def switched(**wanted: Any) -> AbstractContextManager[None]:
    """Sets Dynamo's options inside the block; options that this torch does not have are ignored."""
    config = torch._dynamo.config
    return config.patch({name: value for name, value in wanted.items() if hasattr(config, name)})


_ENTERED = threading.Lock()
_inside = 0
_times_guards: Any = None


@contextmanager
def guards_not_timed() -> Iterator[None]:
    """Keeps Dynamo from timing the guards of what it traced, in all threads, inside the block.

    For that timing, a number in its log, Dynamo empties the processor's caches: 20 ms per trace.
    """
    global _inside, _times_guards
    name = "profile_guard_manager"
    with _ENTERED:
        if not _inside and hasattr(made_guards, name):
            _times_guards = getattr(made_guards, name)
            setattr(made_guards, name, lambda *_: 0.0)
        _inside += 1
    try:
        yield
    finally:
        with _ENTERED:
            _inside -= 1
            if not _inside and _times_guards is not None:
                setattr(made_guards, name, _times_guards)
                _times_guards = None
