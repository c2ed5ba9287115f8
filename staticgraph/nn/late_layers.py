"""Detects layers added after a model was made static: a new head, another block during training.

Layers are converted when a runner is made. One that is registered later is PyG's stock layer, which
also runs over padding rows, without any visible error. Torch reports every registration of a module
(:mod:`staticgraph.nn.registrations`); code that keeps a model static checks here for new ones.
"""

from __future__ import annotations

from torch import nn

from staticgraph.nn.registrations import watch


class Newcomers:
    """Tracks whether layers were added to a model.

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
        """Records the modules as they are now; returns whether their types or paths have changed
        since the last call."""
        self.came = False  # first, so that a registration during this call is not lost
        watch(self._model.modules(), self)
        before = self._kinds
        self._kinds = [(path, type(module)) for path, module in self._model.named_modules()]
        return self._kinds != before

    def registered(self, layer: bool) -> None:
        """Called by :mod:`staticgraph.nn.registrations` at each registration."""
        if layer:
            self.came = True
