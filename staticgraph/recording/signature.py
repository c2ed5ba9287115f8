"""What recordings assume of a model's modules, compared with the current modules.

The problem: a replay runs no Python. If a dropout's ``p`` is changed, a single BatchNorm is put
into evaluation mode, a layer is frozen with ``requires_grad_(False)``, or a buffer is replaced, an
eager step follows the change, a compiled one is refused by its guards, and a replay silently goes
on as it was recorded. The idea: note at the recording everything a forward may depend on, and check
it at the start of an epoch, at the second, third, fifth, ninth replay and so on, and at regular
intervals (:mod:`staticgraph.recording.recorded_model`). torch reports at once when a parameter, a
buffer or a module is registered again, and counts the hooks that were made; and every replay
compares the values that people change between steps (:class:`Watched`). Whatever has changed, the
next replay then checks. What the loss and the forward read is checked with it
(:mod:`staticgraph.recording.assumptions`).

Noted are every module (:mod:`staticgraph.recording.assumptions`) and, for each recording, the
training flags and which parameters require gradients. What the recorded run itself wrote (a
counter, an activation kept for later) is not assumed, and is left out.

Not seen: a change inside a value of another kind (a user's own dictionary), a list that was empty,
and private attributes, which a model may use for its own bookkeeping.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import FunctionType, NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from staticgraph.nn.registrations import watch
from staticgraph.recording.assumptions import GONE, Change, NotedModule, differ, read_by, text_of
from staticgraph.steps.state.reachable_state import names_in, of_library
from staticgraph.steps.state.training_hooks import callbacks_of


class Flags(NamedTuple):
    """The flags of one recording: ``training`` by module, ``requires_grad`` by parameter.

    The second is None if no gradients were recorded.
    """

    training: list[bool]
    wanted: list[bool] | None


class Watched(NamedTuple):
    """What every replay compares: values that people change between steps, with no report by torch.

    These are the training flags of modules that read them, their numbers (the ``p`` of a dropout,
    a norm's momentum), in a user's own modules whole numbers and texts too, how many attributes and
    submodules there are, and which parameters are frozen. Other values are left to the checks at
    intervals. A few calls into C, whatever the number of modules.
    """

    owners: list[dict[str, Any]]
    names: list[str]
    values: list[Any]
    counted: list[dict[str, Any]]
    counts: list[int]
    parameters: list[Tensor]
    wanted: list[bool] | None


@functools.lru_cache(maxsize=1024)
def _reads_training(kind: type[nn.Module]) -> bool:
    """Whether a method of a module's class names its training flag."""
    methods = (f for base in kind.__mro__ if base is not nn.Module for f in vars(base).values())
    return any("training" in names_in(f.__code__) for f in methods if isinstance(f, FunctionType))


class Signature:
    """The signature of one model, as it is when this is made.

    Args:
        model: the model that is recorded.
        functions: the loss and the forward, by the names that messages call them; see
            :mod:`staticgraph.recording.assumptions`.
        optimizer: the optimizer, if its step is recorded too; None for none.

    Attributes:
        doubtful: torch reported a new registration, or a change was found: check before the next
            replay.
        hooks_made: how many hooks had been made in the process at the last check.
    """

    def __init__(
        self,
        model: nn.Module,
        functions: Mapping[str, object] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.doubtful: bool = False
        self.hooks_made: int = RemovableHandle.next_id
        self._functions = functions or {}
        self._read = read_by(self._functions)
        self._modules = [NotedModule(path, module) for path, module in model.named_modules()]
        self._parameters = dict(model.named_parameters())
        self._optimizer = optimizer
        self._callbacks = callbacks_of(self.parameters, optimizer)
        watch((noted.module for noted in self._modules), self)

    def registered(self, layer: bool) -> None:
        """Called when torch reports a registration in a noted module."""
        self.doubtful = True

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters, each once."""
        return list(self._parameters.values())

    def flags(self, trains: bool) -> Flags:
        """Returns the current flags."""
        training = [noted.module.training for noted in self._modules]
        wanted = [p.requires_grad for p in self._parameters.values()] if trains else None
        return Flags(training, wanted)

    def watched(self, flags: Flags) -> Watched:
        """Returns what every replay of a recording with these flags compares."""
        values: list[tuple[dict[str, Any], str, Any]] = []
        counted: list[dict[str, Any]] = []
        for noted, training in zip(self._modules, flags.training, strict=True):
            attributes, children = vars(noted.module), noted.module._modules
            if _reads_training(noted.kind):
                values.append((attributes, "training", training))
            kinds = float if of_library(noted.kind) else (float, bool, int, str, NoneType)
            values += [
                (attributes, name, value)
                for name, value in noted.attributes.items()
                if isinstance(value, kinds) or name == "track_running_stats"
            ]
            counted += [attributes, children] if children else [attributes]
        return Watched(
            [owner for owner, _, _ in values],
            [name for _, name, _ in values],
            [value for _, _, value in values],
            counted,
            list(map(len, counted)),
            self.parameters,
            flags.wanted,
        )

    def note_registered(self) -> None:
        """Adopts what was registered since this was made as part of the model."""
        for noted in self._modules:
            noted.note_registered()

    def settle(self) -> None:
        """Drops what has changed since this was made, as the recorded run itself wrote it."""
        for noted in self._modules:
            noted.forget()
        now = read_by(self._functions)
        self._read = {
            where: value
            for where, value in self._read.items()
            if not differ(now.get(where, GONE), value)
        }

    def changes(self, flags: Flags | None = None) -> list[Change]:
        """Returns what has changed, including the flags if given."""
        changes: list[Change] = []
        self.doubtful = False
        self.hooks_made = RemovableHandle.next_id
        for place, noted in enumerate(self._modules):
            changes += noted.changes()
            if flags is not None and noted.module.training is not flags.training[place]:
                training = flags.training[place]
                changes.append(noted.changed("training", str(training), str(not training)))
        if flags is not None and flags.wanted is not None:
            for wanted, (name, parameter) in zip(
                flags.wanted, self._parameters.items(), strict=True
            ):
                if parameter.requires_grad is not wanted:
                    changes.append(Change(f"{name}.requires_grad", str(wanted), str(not wanted)))
        callbacks = callbacks_of(self.parameters, self._optimizer)
        if callbacks != self._callbacks:
            before, after = str(len(self._callbacks)), str(len(callbacks))
            changes.append(Change("hooks of parameters and of the optimizer", before, after))
        now = read_by(self._functions)
        evaluates = flags is not None and flags.wanted is None  # then no loss was recorded
        for where, value in self._read.items():
            if evaluates and where.startswith("loss: "):
                continue
            if differ(present := now.get(where, GONE), value):
                before, after = text_of(value), text_of(present)
                changes.append(Change(where, before, "another" if after == before else after))
        if changes:
            self.doubtful = True
        return changes
