"""One module as it was when it was recorded: everything in it that a forward may depend on.

Noted are its class, its submodules, the objects and addresses of its parameters and buffers, its
hooks, and its public attributes that are plain values, tensors or functions. A change is named in a
message by its path in the model.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from functools import partial
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from staticgraph.internals.hooks import MESSAGE_HOOKS, MODULE_HOOKS

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial)


class _Gone:
    def __repr__(self) -> str:
        return "not there"


GONE = _Gone()


def is_watched(value: Any) -> bool:
    """Whether a public attribute with this value is watched; an empty list may still be filled."""
    if type(value) is list and not value:
        return False
    if isinstance(value, tuple | list):
        return all(isinstance(item, PLAIN) for item in value)
    return isinstance(value, (*PLAIN, *_FUNCTIONS, Tensor))


def differ(now: Any, noted: Any) -> bool:
    """Whether a value has changed; values of other kinds need not be comparable."""
    if now is noted:
        return False
    if isinstance(noted, tuple) and isinstance(now, tuple | list):
        return len(now) != len(noted) or any(map(differ, now, noted))
    if isinstance(noted, PLAIN) and isinstance(now, PLAIN):
        return type(now) is not type(noted) or now != noted
    return True


def text_of(value: Any) -> str:
    """Returns the text of a value in a message."""
    if isinstance(value, (*PLAIN, _Gone, tuple, list)):
        return repr(value)
    return getattr(value, "__qualname__", None) or f"a {type(value).__name__}"


# How many changes a message lists.
NAMED = 6


class Change(NamedTuple):
    """One difference from what was recorded.

    Attributes:
        where: the path of a module, and what in it has changed.
        before, after: the values as text.
        attribute: whether it is an attribute, which perhaps no forward reads.
    """

    where: str
    before: str
    after: str
    attribute: bool = False

    def __str__(self) -> str:
        return f"{self.where} was {self.before}, is {self.after}"


def told(changes: Sequence[Change], remedy: str) -> str:
    """Returns changes as the end of a message."""
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


_REGISTERED = ("_parameters", "_buffers", "_modules")
_HOOKS = (*MODULE_HOOKS, *MESSAGE_HOOKS)


class NotedModule:
    """What was noted of one module.

    Args:
        path: its path in the model, ``""`` for the model itself.
        module: the module, noted in its current state.

    Attributes:
        kind: its class.
        own: the names of all its attributes.
        attributes: those that a forward may read.
        hooks: how many of each kind.
        registered: parameters, buffers and submodules, by name.
        addresses: the addresses of the buffers.
    """

    path: str
    module: nn.Module
    kind: type[nn.Module]
    own: set[str]
    attributes: dict[str, Any]
    hooks: list[int]
    registered: list[dict[str, Any]]
    addresses: dict[str, int]

    __slots__ = ("addresses", "attributes", "hooks", "kind", "module", "own", "path", "registered")

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path, self.module, self.kind = path, module, type(module)
        own = vars(module)
        self.own = set(own)
        self.attributes = {
            name: tuple(value) if type(value) is list else value
            for name, value in own.items()
            if not name.startswith("_") and name != "training" and is_watched(value)
        }
        self.hooks = [len(own.get(name) or ()) for name in _HOOKS]
        self.note_registered()

    def note_registered(self) -> None:
        """Notes parameters, buffers and submodules as they are now."""
        own = vars(self.module)
        self.registered = [dict(own[name]) for name in _REGISTERED]
        self.addresses = {n: _address(b) for n, b in self.module._buffers.items()}

    def changes(self) -> Iterator[Change]:
        """Yields what in the module is no longer as it was."""
        module = self.module
        own = vars(module)
        if type(module) is not self.kind:
            yield self.changed("", self.kind.__name__, type(module).__name__)
        for name, value in self.attributes.items():
            now = own.get(name, GONE)
            if now is not value and differ(now, value):
                yield self.changed(name, text_of(value), text_of(now), attribute=True)
        if own.keys() != self.own:
            for name in own.keys() - self.own:  # it may hide an attribute of the class
                if not name.startswith("_") and (before := getattr(self.kind, name, None)):
                    yield self.changed(name, text_of(before), text_of(own[name]), attribute=True)
        for kind, before in zip(_REGISTERED, self.registered, strict=True):
            now = own[kind]
            if len(now) != len(before) or not all(map(is_, now.values(), before.values())):
                for name in {**before, **now}:
                    if (one := before.get(name)) is not (other := now.get(name)):
                        after = "another" if type(one) is type(other) else _kind_of(other)
                        yield self.changed(name, _kind_of(one), after)
        for name, address in self.addresses.items():
            now = _address(module._buffers.get(name))
            if now != address and module._buffers.get(name) is self.registered[1].get(name):
                yield self.changed(name, f"at address {address:#x}", f"at {now:#x}")
        hooks = [len(own.get(name) or ()) for name in _HOOKS]
        if hooks != self.hooks:
            yield self.changed("hooks", str(sum(self.hooks)), str(sum(hooks)))

    def forget(self) -> None:
        """Drops from the notes what has changed since."""
        own = vars(self.module)
        for name, value in list(self.attributes.items()):
            if differ(own.get(name, GONE), value):
                del self.attributes[name]
        self.own |= own.keys()

    def changed(self, name: str, before: str, after: str, attribute: bool = False) -> Change:
        """Returns a change of what the module calls ``name``; ``""`` for the module itself."""
        where = ".".join(filter(None, (self.path, name))) or "the model"
        return Change(where, before, after, attribute)


def _kind_of(value: nn.Module | Tensor | None) -> str:
    return repr(GONE) if value is None else f"a {type(value).__name__}"


def _address(value: Tensor | None) -> int:
    try:
        return 0 if value is None else value.data_ptr()
    except RuntimeError:  # a sparse tensor has none
        return 0
