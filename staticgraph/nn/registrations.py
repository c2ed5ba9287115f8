"""What torch tells of a model's modules: one of them is given a parameter, a buffer or a layer.

Torch calls hooks of the whole process at each registration of any module. One set of them stands
here, made when the first model is watched. Who listens is kept by module, weakly: a model that
nobody keeps is not kept here, nor is a listener that nobody keeps.

Modules may be built, and watched, in several threads: what a hook reads is never changed, only
exchanged for another, so that no registration waits for a lock.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from torch import nn
from torch.nn.modules import module as torch_module


class Listener(Protocol):
    """Who is told."""

    def registered(self, layer: bool) -> None:
        """A watched module is given something, in whichever thread.

        Args:
            layer: it is a module; else a parameter or a buffer.
        """
        ...


_LISTENERS: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[Listener], ...]]
_LISTENERS = weakref.WeakKeyDictionary()
_CHANGING = threading.RLock()  # a collection of garbage inside may end a model, and build another
_HOOKS: list[Any] = []


def watch(modules: Iterable[nn.Module], listener: Listener) -> None:
    """Tells a listener of every registration in some modules from now on; in one that was watched
    for it before, once as well.

    Args:
        modules: each alone; what they contain is watched where it is among them.
        listener: told for as long as somebody keeps it.
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
            living = tuple(kept for kept in _LISTENERS.get(module, ()) if kept() is not None)
            if new not in living:
                _LISTENERS[module] = (*living, new)


def _tensor_registered(module: nn.Module, name: str, value: Any) -> None:
    _tell(module, layer=False)


def _layer_registered(module: nn.Module, name: str, value: Any) -> None:
    _tell(module, layer=True)


def _tell(module: nn.Module, layer: bool) -> None:
    for kept in _LISTENERS.get(module, ()):
        if (listener := kept()) is not None:
            listener.registered(layer)
