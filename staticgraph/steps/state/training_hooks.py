"""User hooks: left out of runs that do not train, and reported if they change after compilation.

A hook on a parameter may take an optimizer's step (``register_post_accumulate_grad_hook``), clip by
a norm that it keeps, or write a log; one on an optimizer may update an average. A check or a timing
is not training, and restores the state it knows of, which does not include what such hooks write
to. A recording runs them, since a replay repeats what they did on the device.

A compiled step keeps the hooks that the model had then, so a later change is reported.
torch can check the hooks of every module before every call, which takes 3 to 4% of a step over
eight small graphs. Here one number tells whether any hook was made in this process since the last
check, and only the hooks that existed then are checked every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from staticgraph.errors import NotStatic
from staticgraph.internals.hooks import MODULE_HOOKS
from staticgraph.nn.refused_layers import unheard_hooks
from staticgraph.steps.state.recordable_optimizer import parameters_of

Hooks = dict[tuple[str, str], tuple[int, ...]]


class HeardHooks:
    """Watches the hooks of one model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._traced: Hooks | None = None  # None: nothing is compiled yet
        self._standing: list[tuple[Mapping[int, object], int]] = []
        self._hooks_made = -1  # the process's count of hooks at the last check

    def note(self) -> None:
        """Notes the hooks; called before a step is traced.

        Raises:
            NotStatic: as :meth:`check`.
        """
        if self._traced is None:
            self._traced = {place: tuple(hooks) for place, hooks in self._present()}
            self._standing = [(hooks, len(hooks)) for _, hooks in self._present()]
        self._look()

    def check(self) -> None:
        """Checks the hooks; called before a compiled step.

        Raises:
            NotStatic: hooks came or went since it was traced, or there are hooks that no compiled
                step runs.
        """
        if RemovableHandle.next_id != self._hooks_made:
            self._look()
            return
        for hooks, count in self._standing:
            if len(hooks) != count:
                self._look()

    def forget(self) -> None:
        """Forgets the noted hooks: nothing is compiled any longer."""
        self._traced, self._standing = None, []

    def _look(self) -> None:
        self._hooks_made = -1  # so that a refusal is repeated at the next call
        for path, why in unheard_hooks(self._model).items():
            raise NotStatic(f"{path}: {why}" if path else why)
        now = {place: tuple(hooks) for place, hooks in self._present()}
        traced = now if self._traced is None else self._traced
        for path, kind in now.keys() | traced.keys():
            if now.get((path, kind)) != traced.get((path, kind)):
                raise NotStatic(
                    f"a {kind.strip('_').removesuffix('s').replace('_', ' ')} of "
                    f"{path or 'the model'} came or went since its steps were compiled, which "
                    "would have to be compiled again: register hooks before warmup() and the "
                    "first step, call warmup() again, or use mode='eager'"
                )
        self._hooks_made = RemovableHandle.next_id

    def _present(self) -> Iterator[tuple[tuple[str, str], Mapping[int, object]]]:
        for path, module in self._model.named_modules():
            for kind in MODULE_HOOKS:
                if hooks := getattr(module, kind):
                    yield (path, kind), hooks


_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def callbacks_of(
    parameters: Iterable[Tensor], optimizer: torch.optim.Optimizer | None
) -> list[Any]:
    """Returns the hooks themselves."""
    owners = [(p, _OF_PARAMETERS) for p in parameters] + [(optimizer, _OF_OPTIMIZERS)]
    hook_dicts = [getattr(owner, name, None) for owner, names in owners for name in names]
    return [hook for hooks in hook_dicts if hooks for hook in hooks.values()]


@contextmanager
def without_callbacks(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None
) -> Iterator[None]:
    """A ``with`` block in which no hook of a parameter or of the optimizer's steps is called.

    Afterwards all are back in their order. Autograd reads the very dictionaries, so these are
    emptied and filled again.
    """
    parameters = [*model.parameters(), *parameters_of(optimizer)]
    removed: dict[int, tuple[Any, Any]] = {}
    owners = [(owner, _OF_PARAMETERS) for owner in parameters] + [(optimizer, _OF_OPTIMIZERS)]
    for owner, names in owners:
        for name in names:
            hooks = getattr(owner, name, None)
            if hooks:
                removed.setdefault(id(hooks), (hooks, list(hooks.items())))
    for hooks, _ in removed.values():
        hooks.clear()
    try:
        yield
    finally:
        for hooks, items in removed.values():
            hooks.update(items)
