"""What recordings took for granted of a model's modules, compared with what stands there now.

The problem: a replay runs no Python. Dropout whose ``p`` was changed, one BatchNorm put into
evaluation mode, a layer frozen with ``requires_grad_(False)``, a buffer exchanged: an eager step
follows, a compiled one is refused by its guards, and a replay goes on as it was recorded, in
silence. The idea: note at the recording what a forward may depend on, and look again when an epoch
begins, at the second replay, the third, the fifth, the ninth and so on, and every so many
(:mod:`staticgraph.recording.recorded_model`). Torch tells at once of a parameter, a buffer or a
module that is registered again, and counts the hooks that were made; the next replay then looks.
What the loss and the forward read is looked at with it (:mod:`staticgraph.recording.premises`).

Noted are every module (:mod:`staticgraph.recording.noted_module`), and of each recording the
training flags and which parameters wanted gradients. What the recorded run itself wrote (a counter,
an activation kept for later) is no premise of it, and is left out.

Not seen: a change inside a value of another kind (a dictionary of the user's own), a list that was
empty, and private attributes, which are how a model may keep its own books.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from staticgraph.nn.registrations import watch
from staticgraph.recording.changes import Change
from staticgraph.recording.noted_module import NotedModule
from staticgraph.recording.noted_values import GONE, differ, text_of
from staticgraph.recording.premises import read_by
from staticgraph.steps.state.training_hooks import callbacks_of


class Flags(NamedTuple):
    """What belongs to one recording: ``training`` by module, ``requires_grad`` by parameter; the
    second is None where no gradients were recorded."""

    training: list[bool]
    wanted: list[bool] | None


class Signature:
    """Of one model, as it stands when this is made.

    Args:
        model: what is recorded.
        functions: the loss and the forward, by the names that messages call them; see
            :mod:`staticgraph.recording.premises`.
        optimizer: whose step is recorded too; None for none.

    Attributes:
        doubtful: torch told of something registered again, or a change was found: look before the
            next replay.
        hooks_made: how many hooks had been made in the process at the last look.
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
        """As torch tells it: in a module that was noted."""
        self.doubtful = True

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters, each once."""
        return list(self._parameters.values())

    def flags(self, trains: bool) -> Flags:
        """The flags as they stand now."""
        training = [noted.module.training for noted in self._modules]
        wanted = [p.requires_grad for p in self._parameters.values()] if trains else None
        return Flags(training, wanted)

    def note_registered(self) -> None:
        """What was registered since this was made is part of the model."""
        for noted in self._modules:
            noted.note_registered()

    def settle(self) -> None:
        """What has changed since this was made was written by the recorded run: leaves it out."""
        for noted in self._modules:
            noted.forget()
        now = read_by(self._functions)
        self._read = {
            where: value
            for where, value in self._read.items()
            if not differ(now.get(where, GONE), value)
        }

    def changes(self, flags: Flags | None = None) -> list[Change]:
        """What is no longer as it was; of flags, too, where given."""
        found: list[Change] = []
        self.doubtful = False
        self.hooks_made = RemovableHandle.next_id
        for place, noted in enumerate(self._modules):
            found += noted.changes()
            if flags is not None and noted.module.training is not flags.training[place]:
                training = flags.training[place]
                found.append(noted.changed("training", str(training), str(not training)))
        if flags is not None and flags.wanted is not None:
            for asked, (name, parameter) in zip(
                flags.wanted, self._parameters.items(), strict=True
            ):
                if parameter.requires_grad is not asked:
                    found.append(Change(f"{name}.requires_grad", str(asked), str(not asked)))
        callbacks = callbacks_of(self.parameters, self._optimizer)
        if callbacks != self._callbacks:
            before, after = str(len(self._callbacks)), str(len(callbacks))
            found.append(Change("hooks of parameters and of the optimizer", before, after))
        now = read_by(self._functions)
        evaluates = flags is not None and flags.wanted is None  # and its recording has no loss
        for where, value in self._read.items():
            if evaluates and where.startswith("loss: "):
                continue
            if differ(present := now.get(where, GONE), value):
                before, after = text_of(value), text_of(present)
                found.append(Change(where, before, "another" if after == before else after))
        if found:
            self.doubtful = True
        return found
