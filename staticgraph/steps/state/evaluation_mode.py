"""Puts a model's modules into evaluation mode and back, without traversing them at every call.

The problem: ``model.eval()`` and the way back visit every module through Python generators, twice
per batch of an evaluation, although the modules stay the same. The idea: list the modules once,
with the submodules of each, and at each call compare those with the current ones: objects in a flat
list, in C loops. Any change of modules, by whatever means, makes a new list.

Invariant: flags are those that ``model.eval()`` sets, and afterwards those from before. If a module
defines evaluation mode itself (its own ``train`` or ``eval``), the model's ``eval()`` is called. A
model that is not in training mode itself keeps all its flags: the user put it into evaluation, and
perhaps some of its modules back into training (dropout that is to be sampled).
"""

from __future__ import annotations

import warnings
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
        model: its modules may change; they are checked at every call.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[nn.Module] = []
        self._counts: list[int] = []
        self._children: list[nn.Module | None] = []
        self._says_itself = False
        self._warned = False

    @contextmanager
    def __call__(self) -> Iterator[bool]:
        """A ``with`` block in evaluation mode, without gradients; every module's flag is restored.

        Yields whether modules stay in training inside, because the model itself is in evaluation
        already; a warning names them, once.
        """
        if not self._listed():
            self._list()
        trained, sampled = [module for module in self._modules if module.training], False
        if not self._model.training:
            sampled = bool(trained) and not self._says_itself
            if sampled:
                self._warn(trained)
            trained = []
        elif self._says_itself:
            self._model.eval()
        else:
            for module in trained:
                module.training = False
        try:
            with torch.no_grad():
                yield sampled
        finally:
            for module in trained:
                module.training = True

    def _warn(self, trained: list[nn.Module]) -> None:
        if self._warned:
            return
        self._warned = True
        kinds = ", ".join(sorted({type(module).__name__ for module in trained}))
        warnings.warn(
            f"the model is in evaluation mode, but layers in it are in training mode ({kinds}): it "
            "runs with these flags, in eager mode, as sampling with dropout needs; for plain "
            "evaluation call model.eval()",
            stacklevel=5,
        )

    def _listed(self) -> bool:
        """Whether the modules are still those in the list."""
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
    """Whether any of the modules has its own ``train`` or ``eval``."""
    base = nn.Module.train, nn.Module.eval
    return any(
        (type(m).train, type(m).eval) != base or {"train", "eval"} & vars(m).keys() for m in modules
    )


def settle_training(model: nn.Module) -> None:
    """Calls ``model.train()`` on a newly made model in which a module defines training itself.

    Examples are norms frozen in ``train()`` and a teacher that stays in evaluation mode; a
    hand-written loop makes the same call. A model with any flag off was set up already, and stays
    as it is.
    """
    modules = list(model.modules())
    if all(module.training for module in modules) and says_itself(modules):
        model.train()
