"""A model's modules put into evaluation mode and back, without a walk over them at every call.

The problem: ``model.eval()`` and the way back visit every module through Python's generators, twice
for each batch of an evaluation, although the modules are the same ones all along. The idea: list
them once, with the submodules of each, and compare those with what stands there now: objects in a
flat list, in loops of C. Whatever adds, exchanges or takes away a module, by whichever means, then
makes a new list.

Invariant: flags are those that ``model.eval()`` sets, and afterwards those that were there. A model
of which a module says itself what evaluation mode is (its own ``train`` or ``eval``) is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, is_

import torch
from torch import nn

_SUBMODULES = attrgetter("_modules")


class Evaluation:
    """Evaluation mode of one model.

    Args:
        model: may change; its modules are looked at in every call.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[nn.Module] = []
        self._counts: list[int] = []
        self._children: list[nn.Module | None] = []
        self._says_itself = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """As a ``with`` block: evaluation mode without gradients; every module's flag is put back.

        The same as :func:`staticgraph.steps.state.training_state.evaluating`.
        """
        if not self._listed():
            self._list()
        trained = [module for module in self._modules if module.training]
        if self._says_itself:
            self._model.eval()
        else:
            for module in trained:
                module.training = False
        try:
            with torch.no_grad():
                yield
        finally:
            for module in trained:
                module.training = True

    def _listed(self) -> bool:
        """Whether the modules are those that were listed."""
        if not self._modules:
            return False
        submodules = list(map(_SUBMODULES, self._modules))
        if list(map(len, submodules)) != self._counts:
            return False
        now = chain.from_iterable(map(dict.values, submodules))
        return all(map(is_, now, self._children))

    def _list(self) -> None:
        self._modules = list(self._model.modules())
        submodules = list(map(_SUBMODULES, self._modules))
        self._counts = list(map(len, submodules))
        self._children = list(chain.from_iterable(map(dict.values, submodules)))
        self._says_itself = says_itself(self._modules)


def says_itself(modules: Iterable[nn.Module]) -> bool:
    """Whether one of them has a ``train`` or ``eval`` of its own."""
    base = nn.Module.train, nn.Module.eval
    return any(
        (type(m).train, type(m).eval) != base or {"train", "eval"} & vars(m).keys() for m in modules
    )


def settle_training(model: nn.Module) -> None:
    """Asks a model just made what training is, where a module says it itself (norms frozen in
    ``train()``, a teacher that stays in evaluation mode), as ``model.train()`` in a loop by hand
    does. A model of which one flag is off was told already, and stays as it is."""
    modules = list(model.modules())
    if all(module.training for module in modules) and says_itself(modules):
        model.train()
