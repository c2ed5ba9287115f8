"""Hooks that a model had when its steps were compiled: one that comes later, or goes, is said.

torch can ask for the hooks of every module before every call, which takes 3 to 4% of a step over
eight small graphs. Here one number tells whether any hook was made in this process since the last
look, and only those that stood there then are looked at every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.utils.hooks import RemovableHandle

from staticgraph.errors import NotStatic
from staticgraph.internals.hooks import MODULE_HOOKS
from staticgraph.nn.refused import unheard_hooks

Hooks = dict[tuple[str, str], tuple[int, ...]]


class HeardHooks:
    """Of one model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._traced: Hooks | None = None  # None: nothing is compiled yet
        self._standing: list[tuple[Mapping[int, object], int]] = []
        self._made = -1  # how many hooks there were in the process at the last look

    def note(self) -> None:
        """A step is about to be traced.

        Raises:
            NotStatic: as :meth:`check`.
        """
        if self._traced is None:
            self._traced = {place: tuple(kept) for place, kept in self._found()}
            self._standing = [(kept, len(kept)) for _, kept in self._found()]
        self._look()

    def check(self) -> None:
        """Before a compiled step.

        Raises:
            NotStatic: hooks came or went since it was traced, or there are some that no compiled
                step hears.
        """
        if RemovableHandle.next_id != self._made:
            self._look()
            return
        for kept, count in self._standing:
            if len(kept) != count:
                self._look()

    def forget(self) -> None:
        """Nothing is compiled any more."""
        self._traced, self._standing = None, []

    def _look(self) -> None:
        self._made = -1  # what is refused is refused again
        for path, why in unheard_hooks(self._model).items():
            raise NotStatic(f"{path}: {why}" if path else why)
        now = {place: tuple(kept) for place, kept in self._found()}
        traced = now if self._traced is None else self._traced
        for path, kind in now.keys() | traced.keys():
            if now.get((path, kind)) != traced.get((path, kind)):
                raise NotStatic(
                    f"a {kind.strip('_').removesuffix('s').replace('_', ' ')} of "
                    f"{path or 'the model'} came or went since its steps were compiled, which "
                    "would have to be compiled again: register hooks before warmup() and the "
                    "first step, make a new runner, or use mode='eager'"
                )
        self._made = RemovableHandle.next_id

    def _found(self) -> Iterator[tuple[tuple[str, str], Mapping[int, object]]]:
        for path, module in self._model.named_modules():
            for kind in MODULE_HOOKS:
                if kept := getattr(module, kind):
                    yield (path, kind), kept
