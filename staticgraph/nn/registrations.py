"""Tells listeners when a module of a model gets a new parameter, buffer or submodule.

Torch has process-wide hooks that run at each registration on any module. This module installs one
set of them when the first model is watched. Listeners are stored per module, weakly: neither a
model nor a listener is kept alive from here.

Modules may be built and watched in several threads: the tuples that a hook reads are never changed,
only replaced, so that no registration waits for a lock. A buffer that compiled code binds is not
reported.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules import module as torch_module


class Listener(Protocol):
    """An object that is told of registrations."""

    def registered(self, layer: bool) -> None:
        """Called when something is registered on a watched module, in any thread.

        Args:
            layer: whether it is a module; otherwise it is a parameter or a buffer.
        """
        ...


_LISTENERS: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[Listener], ...]]
_LISTENERS = weakref.WeakKeyDictionary()
_CHANGING = threading.RLock()  # reentrant: garbage collection inside may run code that registers
_HOOKS: list[Any] = []


def watch(modules: Iterable[nn.Module], listener: Listener) -> None:
    """Tells a listener of every registration on some modules from now on.

    Watching a module again for the same listener has no further effect.

    Args:
        modules: watched individually; submodules are watched only if they are included.
        listener: told for as long as something else keeps it alive.
    """
    new = weakref.ref(listener)
    with _CHANGING:
        if not _HOOKS:
            _HOOKS.extend(
                (
                    torch_module.register_module_parameter_registration_hook(_tensor_registered),
                    torch_module.register_module_buffer_registration_hook(_tensor_registered),
                    torch_module.register_module_module_registration_hook(_layer_registered),
                )
            )
        for module in modules:
            living = tuple(
                reference for reference in _LISTENERS.get(module, ()) if reference() is not None
            )
            if new not in living:
                _LISTENERS[module] = (*living, new)


def _tensor_registered(module: nn.Module, name: str, value: Any) -> None:
    _tell(module, layer=False)


def _layer_registered(module: nn.Module, name: str, value: Any) -> None:
    _tell(module, layer=True)


def _tell(module: nn.Module, layer: bool) -> None:
    if torch.compiler.is_compiling():  # a call would look for these listeners by their places
        return
    for reference in _LISTENERS.get(module, ()):
        if (listener := reference()) is not None:
            listener.registered(layer)
