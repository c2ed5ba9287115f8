"""Layers that a model was given after it was made static: a new head, another block half way.

Layers are exchanged when a runner is made. One that is registered later is plain PyG's, over
padding rows too, and nothing looks wrong. Torch tells of every registration of a module; whoever
keeps a model static asks here whether there was one.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

_OF_MODULE: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Newcomers]]
_OF_MODULE = weakref.WeakKeyDictionary()
_BOOKS = threading.Lock()
_HANDLES: list[Any] = []


class Newcomers:
    """Whether a model has been given layers.

    Args:
        model: watched from now on, with all of its modules.

    Attributes:
        came: a module was registered somewhere in the model since :meth:`seen`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.came: bool = False
        self._model = model
        self._kinds: list[tuple[str, type[nn.Module]]] = []
        self.seen()

    def seen(self) -> bool:
        """Takes note of the modules as they are now; whether they are of other kinds, or at other
        places, than before."""
        before = self._kinds
        self._kinds = [(path, type(module)) for path, module in self._model.named_modules()]
        with _BOOKS:
            self.came = False
            if not _HANDLES:
                _HANDLES.append(register_module_module_registration_hook(_registered))
            for module in self._model.modules():
                _OF_MODULE.setdefault(module, weakref.WeakSet()).add(self)
        return self._kinds != before


def _registered(module: nn.Module, name: str, value: Any) -> None:
    for newcomers in tuple(_OF_MODULE.get(module, ())):
        newcomers.came = True
