"""What recordings assume of the loss and the forward: values that they read by name.

The problem: a loss reads a weight that the user anneals, a global, a field of a configuration, a
variable of an enclosing function. A replay goes on with the number from when it was recorded. The
idea: when recording, note the values of the names in the code of these functions, as
:mod:`staticgraph.recording.signature` notes the model's attributes, and compare.

Noted are plain values, the identity of tensors, containers with few of these, and small arrays.
They are found in enclosing variables, globals, defaults, arguments that ``partial`` binds, and
attributes, of a user's object, class or module, whose names occur in the code. Names that begin
with an underscore are considered private and are left out. Of the model itself this covers its own
forward, and no layer's.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.recording.noted_module import PLAIN
from staticgraph.steps.state.reachable_state import LIBRARIES, globals_in, names_in

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
    found: dict[str, Any] = {}
    for name, function in functions.items():
        for where, value in _of_callable(function, 0, set()):
            found.setdefault(f"{name}: {where}", value)
    return found


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
            if (function.__module__ or "").partition(".")[0] not in LIBRARIES:
                yield from _of_function(function, depth, met)
    elif isinstance(value, types.FunctionType):
        if (value.__module__ or "").partition(".")[0] not in LIBRARIES:
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
    around: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is still empty
            around[name] = cell.cell_contents
    code = function.__code__
    given = function.__globals__
    around |= {name: given[name] for name in globals_in(code) if name in given}
    defaults = function.__defaults__ or ()
    of_defaults = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    around |= dict(zip(of_defaults, defaults, strict=True)) | (function.__kwdefaults__ or {})
    for name, value in around.items():
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
            own = getattr(place, "__dict__", {})
            if attribute in own:
                value = own[attribute]
                if _is_noted(value):
                    yield f"{name}.{attribute}", _kept(value)
                elif isinstance(value, types.FunctionType) and place is not owner:
                    yield from _of_callable(types.MethodType(value, owner), depth + 1, met)
                break


def _is_noted(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return len(value) <= MOST and all(isinstance(item, (*PLAIN, Tensor)) for item in items)
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
