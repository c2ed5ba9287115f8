"""What recordings assume of modules, and of the loss and the forward.

A module is noted as it was when it was recorded, everything in it that a forward may depend on: its
class, its submodules, the objects and addresses of its parameters and buffers, its hooks, and its
public attributes that are plain values, tensors or functions. A change is named in a message by its
path in the model.

The problem of functions: a loss reads a weight that the user anneals, a global, a field of a
configuration, a variable of an enclosing function. A replay goes on with the number from when it
was recorded. The idea: when recording, note the values of the names in the code of these functions,
as a module's attributes, and compare.

Noted are plain values, the identity of tensors, containers with few of these, and small arrays.
They are found in enclosing variables, globals, defaults, arguments that ``partial`` binds, and
attributes, of a user's object, class or module, whose names occur in the code. Names that begin
with an underscore are considered private and are left out. Of the model itself this covers its own
forward, and no layer's.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from staticgraph.internals.hooks import MESSAGE_HOOKS, MODULE_HOOKS
from staticgraph.steps.state.reachable_state import (
    LIBRARIES,
    around,
    items_in,
    names_in,
    of_library,
)

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


def changes_in_words(changes: Sequence[Change], remedy: str) -> str:
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
        names: the names of all its attributes.
        attributes: those that a forward may read.
        hooks: how many of each kind.
        registered: parameters, buffers and submodules, by name.
        addresses: the addresses of the buffers.
    """

    path: str
    module: nn.Module
    kind: type[nn.Module]
    names: set[str]
    attributes: dict[str, Any]
    hooks: list[int]
    registered: list[dict[str, Any]]
    addresses: dict[str, int]

    __slots__ = (
        "addresses",
        "attributes",
        "hooks",
        "kind",
        "module",
        "names",
        "path",
        "registered",
    )

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path, self.module, self.kind = path, module, type(module)
        values = vars(module)
        self.names = set(values)
        self.attributes = {
            name: tuple(value) if type(value) is list else value
            for name, value in values.items()
            if not name.startswith("_") and name != "training" and is_watched(value)
        }
        self.hooks = [len(values.get(name) or ()) for name in _HOOKS]
        self.note_registered()

    def note_registered(self) -> None:
        """Notes parameters, buffers and submodules as they are now."""
        values = vars(self.module)
        self.registered = [dict(values[name]) for name in _REGISTERED]
        self.addresses = {n: _address(b) for n, b in self.module._buffers.items()}

    def changes(self) -> Iterator[Change]:
        """Yields what in the module is no longer as it was."""
        module = self.module
        values = vars(module)
        if type(module) is not self.kind:
            yield self.changed("", self.kind.__name__, type(module).__name__)
        for name, value in self.attributes.items():
            now = values.get(name, GONE)
            if now is not value and differ(now, value):
                yield self.changed(name, text_of(value), text_of(now), attribute=True)
        if values.keys() != self.names:
            for name in values.keys() - self.names:  # it may hide an attribute of the class
                if not name.startswith("_") and (before := getattr(self.kind, name, None)):
                    yield self.changed(name, text_of(before), text_of(values[name]), attribute=True)
        for kind, before in zip(_REGISTERED, self.registered, strict=True):
            now = values[kind]
            if len(now) != len(before) or not all(map(is_, now.values(), before.values())):
                now = dict(now)
                for name in {**before, **now}:
                    if (noted := before.get(name)) is not (other := now.get(name)):
                        after = "another" if type(noted) is type(other) else _kind_of(other)
                        yield self.changed(name, _kind_of(noted), after)
        buffers = dict(module._buffers)  # those of TorchScript are no dict
        for name, address in self.addresses.items():
            now = _address(buffers.get(name))
            if now != address and buffers.get(name) is self.registered[1].get(name):
                yield self.changed(name, f"at address {address:#x}", f"at {now:#x}")
        hooks = [len(values.get(name) or ()) for name in _HOOKS]
        if hooks != self.hooks:
            yield self.changed("hooks", str(sum(self.hooks)), str(sum(hooks)))

    def forget(self) -> None:
        """Drops from the notes what has changed since."""
        values = vars(self.module)
        for name, value in list(self.attributes.items()):
            if differ(values.get(name, GONE), value):
                del self.attributes[name]
        self.names |= values.keys()

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


# The most items of a container, and numbers of an array: anything larger is data.
MOST = 256
DEPTH = 4


def read_by(functions: Mapping[str, object]) -> dict[str, Any]:
    """Returns what functions read by name, with the current values.

    Args:
        functions: by the name that messages call them.

    Returns:
        Values by where they were found, such as ``loss: config.beta``; tensors as they are.
    """
    values: dict[str, Any] = {}
    for name, function in functions.items():
        for where, value in _of_callable(function, 0, set()):
            values.setdefault(f"{name}: {where}", value)
    return values


def _of_callable(value: Any, depth: int, met: set[int]) -> Iterator[tuple[str, Any]]:
    if depth > DEPTH or id(getattr(value, "__func__", value)) in met:
        return
    met.add(id(getattr(value, "__func__", value)))
    if isinstance(value, partial):
        bound = {f"argument {number}": item for number, item in enumerate(value.args)}
        for name, item in (bound | value.keywords).items():
            yield from _of_value(name, item, (), depth, met)
        yield from _of_callable(value.func, depth + 1, met)
    elif isinstance(value, types.MethodType):
        function: Any = value.__func__
        if isinstance(function, types.FunctionType):
            names = tuple(names_in(function.__code__))
            yield from _of_attributes("self", value.__self__, names, depth, met)
            if not of_library(function):
                yield from _of_function(function, depth, met)
    elif isinstance(value, types.FunctionType):
        if not of_library(value):
            yield from _of_function(value, depth, met)
    elif isinstance(value, torch.nn.Module):
        yield from _of_callable(types.MethodType(type(value).forward, value), depth, met)
    elif not isinstance(value, type) and callable(value):
        call = type(value).__dict__.get("__call__")
        if isinstance(call, types.FunctionType):
            yield from _of_callable(types.MethodType(call, value), depth, met)


def _of_function(
    function: types.FunctionType, depth: int, met: set[int]
) -> Iterator[tuple[str, Any]]:
    names = tuple(names_in(function.__code__))
    for name, value in around(function):
        yield from _of_value(name, value, names, depth, met)


def _of_value(
    name: str, value: Any, names: tuple[str, ...], depth: int, met: set[int]
) -> Iterator[tuple[str, Any]]:
    """Yields a value itself, or what the code reads of it."""
    if name.startswith("_"):
        return
    if _is_noted(value):
        yield name, _kept(value)
    elif isinstance(value, types.FunctionType | types.MethodType | partial):
        yield from _of_callable(value, depth + 1, met)
    else:
        yield from _of_attributes(name, value, names, depth, met)
        if isinstance(value, torch.nn.Module):
            yield from _of_callable(value, depth + 1, met)


def _of_attributes(
    name: str, owner: Any, names: tuple[str, ...], depth: int, met: set[int]
) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of ``owner`` named in the code; for a method, what it reads."""
    kind = owner.__name__ if isinstance(owner, types.ModuleType) else type(owner).__module__
    if isinstance(owner, type):
        kind = owner.__module__
    if kind.partition(".")[0] in (*LIBRARIES, "builtins"):
        return
    for attribute in names:
        if attribute.startswith("_"):
            continue
        for place in (owner, *(() if isinstance(owner, type) else type(owner).__mro__)):
            values = getattr(place, "__dict__", {})
            if attribute in values:
                value = values[attribute]
                if _is_noted(value):
                    yield f"{name}.{attribute}", _kept(value)
                elif isinstance(value, types.FunctionType) and place is not owner:
                    yield from _of_callable(types.MethodType(value, owner), depth + 1, met)
                break


def _is_noted(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        items = items_in(value, MOST)
        return items is not None and all(isinstance(item, (*PLAIN, Tensor)) for item in items)
    if isinstance(value, np.ndarray):
        return value.size <= MOST and value.dtype != object
    return isinstance(value, (*PLAIN, Tensor))


def _kept(value: Any) -> Any:
    """Returns a copy that does not change when the container does."""
    if isinstance(value, dict):
        return tuple(value), *value.values()
    if isinstance(value, list):
        return tuple(value)
    return tuple(value.ravel().tolist()) if isinstance(value, np.ndarray) else value
