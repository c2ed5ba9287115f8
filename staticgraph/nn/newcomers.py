"""Layers that a model was given after it was made static: a new head, another block half way.

Layers are exchanged when a runner is made. One that is registered later is plain PyG's, over
padding rows too, and nothing looks wrong. Torch tells of every registration of a module
(:mod:`staticgraph.nn.registrations`); whoever keeps a model static asks here whether there was one.
"""

from __future__ import annotations

from torch import nn

from staticgraph.nn.registrations import watch


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
        self.came = False  # first: what comes meanwhile is news
        watch(self._model.modules(), self)
        before = self._kinds
        self._kinds = [(path, type(module)) for path, module in self._model.named_modules()]
        return self._kinds != before

    def registered(self, layer: bool) -> None:
        """As torch tells it."""
        if layer:
            self.came = True
