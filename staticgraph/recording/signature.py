"""What recordings took for granted of a model's modules, compared with what stands there now.

The problem: a replay runs no Python. Dropout whose ``p`` was changed, one BatchNorm put into
evaluation mode, a layer frozen with ``requires_grad_(False)``, a buffer exchanged: an eager step
follows, a compiled one is refused by its guards, and a replay goes on as it was recorded, in
silence. The idea: note at the recording what a forward may depend on, and look again when an epoch
begins, at the second replay, the third, the fifth, the ninth and so on, and every :data:`EVERY`.
Torch tells at once of a parameter, a buffer or a module that is registered again, and counts the
hooks that were made; the next replay then looks. What the loss and the forward read is looked at
with it (:mod:`staticgraph.recording.premises`).

Noted are of each module its class, its submodules, the objects and addresses of its parameters and
buffers, its hooks, and its public attributes that are plain values, tensors or functions; of each
recording the training flags and which parameters wanted gradients. What the recorded run itself
wrote (a counter, an activation kept for later) is no premise of it, and is left out.

Not seen: a change inside a value of another kind (a dictionary of the user's own), a list that was
empty, and private attributes, which are how a model may keep its own books.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from staticgraph.nn.refused import MESSAGE_HOOKS, MODULE_HOOKS
from staticgraph.recording.premises import PLAIN, read_by
from staticgraph.steps.callbacks import callbacks_of

# A look took 94 us (GINE, 5 layers) and 400 us (GPS, 10 layers) on one core of the 2-core CPU that
# bench_host_time ran on: below one microsecond a replay.
EVERY = 512
# Changes in a message.
NAMED = 6

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial)
_REGISTERED = ("_parameters", "_buffers", "_modules")
_HOOKS = (*MODULE_HOOKS, *sorted(MESSAGE_HOOKS))


class _Gone:
    def __repr__(self) -> str:
        return "not there"


_GONE = _Gone()

_OF_MODULE: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Signature]]
_OF_MODULE = weakref.WeakKeyDictionary()
_BOOKS = threading.Lock()


class Change(NamedTuple):
    """What is no longer as it was.

    Attributes:
        where: the path of a module and what of it.
        before, after: as text.
        attribute: whether it is one that no forward may have read.
    """

    where: str
    before: str
    after: str
    attribute: bool = False

    def __str__(self) -> str:
        return f"{self.where} was {self.before}, is {self.after}"


class Flags(NamedTuple):
    """What belongs to one recording: ``training`` by module, ``requires_grad`` by parameter; the
    second is None where no gradients were recorded."""

    training: list[bool]
    wanted: list[bool] | None


class _Noted:
    """Of one module."""

    __slots__ = ("addresses", "attributes", "hooks", "kind", "module", "own", "path", "registered")

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path, self.module, self.kind = path, module, type(module)
        own = vars(module)
        self.own = set(own)
        self.attributes = {
            name: tuple(value) if type(value) is list else value
            for name, value in own.items()
            if not name.startswith("_") and name != "training" and _is_watched(value)
        }
        self.hooks = [len(own.get(name) or ()) for name in _HOOKS]
        self.note_registered()

    def note_registered(self) -> None:
        """Parameters, buffers and layers, as they stand now."""
        own = vars(self.module)
        self.registered = [dict(own[name]) for name in _REGISTERED]
        self.addresses = {n: _address(b) for n, b in self.module._buffers.items()}

    def changes(self) -> Iterator[Change]:
        module = self.module
        own = vars(module)
        if type(module) is not self.kind:
            yield self._changed("", self.kind.__name__, type(module).__name__)
        for name, value in self.attributes.items():
            now = own.get(name, _GONE)
            if now is not value and _differ(now, value):
                yield self._changed(name, _text(value), _text(now), attribute=True)
        if own.keys() != self.own:
            for name in own.keys() - self.own:  # it hides what the class says
                if not name.startswith("_") and (before := getattr(self.kind, name, None)):
                    yield self._changed(name, _text(before), _text(own[name]), attribute=True)
        for kind, before in zip(_REGISTERED, self.registered, strict=True):
            now = own[kind]
            if len(now) != len(before) or not all(map(is_, now.values(), before.values())):
                for name in {**before, **now}:
                    if (one := before.get(name)) is not (other := now.get(name)):
                        after = "another" if type(one) is type(other) else _text_of(other)
                        yield self._changed(name, _text_of(one), after)
        for name, address in self.addresses.items():
            now = _address(module._buffers.get(name))
            if now != address and module._buffers.get(name) is self.registered[1].get(name):
                yield self._changed(name, f"at address {address:#x}", f"at {now:#x}")
        hooks = [len(own.get(name) or ()) for name in _HOOKS]
        if hooks != self.hooks:
            yield self._changed("hooks", str(sum(self.hooks)), str(sum(hooks)))

    def forget(self) -> None:
        """Leaves out what has changed since."""
        own = vars(self.module)
        for name, value in list(self.attributes.items()):
            if _differ(own.get(name, _GONE), value):
                del self.attributes[name]
        self.own |= own.keys()

    def _changed(self, name: str, before: str, after: str, attribute: bool = False) -> Change:
        where = ".".join(filter(None, (self.path, name))) or "the model"
        return Change(where, before, after, attribute)


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
        self._modules = [_Noted(path, module) for path, module in model.named_modules()]
        self._parameters = dict(model.named_parameters())
        self._optimizer = optimizer
        self._callbacks = callbacks_of(self.parameters, optimizer)
        _watch(self, [noted.module for noted in self._modules])

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
            if not _differ(now.get(where, _GONE), value)
        }

    def changes(self, flags: Flags | None = None) -> list[Change]:
        """What is no longer as it was; of flags, too, where given."""
        found: list[Change] = []
        self.hooks_made = RemovableHandle.next_id
        for place, noted in enumerate(self._modules):
            found += noted.changes()
            if flags is not None and noted.module.training is not flags.training[place]:
                training = flags.training[place]
                found.append(noted._changed("training", str(training), str(not training)))
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
            if _differ(present := now.get(where, _GONE), value):
                before, after = _text(value), _text(present)
                found.append(Change(where, before, "another" if after == before else after))
        self.doubtful = bool(found)
        return found


def told(changes: Sequence[Change], remedy: str) -> str:
    """Changes as the end of a message."""
    named = "; ".join(map(str, changes[:NAMED]))
    more = f"; and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    private = (
        ". An attribute that no forward reads is not looked at where its name begins with an "
        "underscore"
        if any(change.attribute for change in changes)
        else ""
    )
    return (
        "the model is not as it was recorded, and a replay would go on as it was: "
        f"{named}{more}. Undo it, change it before the recording, or {remedy}{private}"
    )


# ---------------------------------------------------------------------- what torch tells


def _watch(signature: Signature, modules: Sequence[nn.Module]) -> None:
    with _BOOKS:
        if not _HANDLES:
            said = nn.modules.module
            _HANDLES.extend(
                register(_registered)
                for register in (
                    said.register_module_parameter_registration_hook,
                    said.register_module_buffer_registration_hook,
                    said.register_module_module_registration_hook,
                )
            )
        for module in modules:
            _OF_MODULE.setdefault(module, weakref.WeakSet()).add(signature)


_HANDLES: list[Any] = []


def _registered(module: nn.Module, name: str, value: Any) -> None:
    for signature in _OF_MODULE.get(module, ()):
        signature.doubtful = True


# ---------------------------------------------------------------------- values


def _is_watched(value: Any) -> bool:
    if type(value) is list and not value:
        return False
    if isinstance(value, tuple | list):
        return all(isinstance(item, PLAIN) for item in value)
    return isinstance(value, (*PLAIN, *_FUNCTIONS, Tensor))


def _differ(now: Any, noted: Any) -> bool:
    """Whether another value stands there; one of another kind does not have to be comparable."""
    if now is noted:
        return False
    if isinstance(noted, tuple) and isinstance(now, tuple | list):
        return len(now) != len(noted) or any(map(_differ, now, noted))
    if isinstance(noted, PLAIN) and isinstance(now, PLAIN):
        return type(now) is not type(noted) or now != noted
    return True


def _text(value: Any) -> str:
    if isinstance(value, (*PLAIN, _Gone, tuple, list)):
        return repr(value)
    return getattr(value, "__qualname__", None) or f"a {type(value).__name__}"


def _text_of(value: nn.Module | Tensor | None) -> str:
    return repr(_GONE) if value is None else f"a {type(value).__name__}"


def _address(value: Tensor | None) -> int:
    try:
        return 0 if value is None else value.data_ptr()
    except RuntimeError:  # a sparse tensor has none
        return 0
