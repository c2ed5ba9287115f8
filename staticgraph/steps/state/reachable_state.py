"""What a subject's loss and forward hold in addition to the model: modules, tensors, containers.

The problem: a run that is not training (a check, a warm-up) restores the model, and a loss may have
its own state: learned task weights, class centres, a memory bank, a teacher. The idea: follow what
a Python function reaches: its closure, the globals that its code names, its defaults, the arguments
that ``partial`` binds, and the attributes of the object that it is a method of; and other functions
of the same program likewise.

The forwards of a user's own modules, and what these keep without registering it (a teacher in a
list), are followed alike; a runner leads to its model.

Not seen: anything reached by computation (``registry[name]()``), objects inside other objects,
tensors above :data:`LARGEST_BYTES`, containers above :data:`MOST_ITEMS`, and views that repeat one
element.
"""

from __future__ import annotations

import dis
import functools
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

# A bank of 65,536 rows of 128 float32 is half of this; anything larger is data, and costs a copy.
LARGEST_BYTES = 64 << 20
# How deep functions that call functions, and containers in containers, are followed.
DEPTH = 4
# How many items of a container are followed: a container with more is data.
MOST_ITEMS = 1024
CONTAINERS = (list, deque, dict, defaultdict, Counter)
_BUILT_IN: tuple[Any, ...] = (dict, list, tuple, deque)
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
# Libraries whose functions hold nothing of a user's.
LIBRARIES = ("torch", "torch_geometric", "numpy", "staticgraph")


def of_library(thing: Any) -> bool:
    """Whether a function or a class belongs to one of :data:`LIBRARIES`."""
    return (thing.__module__ or "").partition(".")[0] in LIBRARIES


class Held(NamedTuple):
    """The modules and tensors that were found, each once.

    Attributes:
        modules: the outermost modules.
        tensors: tensors outside these modules, without results of a computation that autograd
            tracks.
        containers: lists, deques and dicts.
    """

    modules: list[nn.Module]
    tensors: list[Tensor]
    containers: list[Any]


def held_by(*functions: Any) -> Held:
    """Returns what functions, or callable objects, hold.

    Args:
        functions: a subject's loss and forward; None for none.
    """
    modules: dict[int, nn.Module] = {}
    tensors: dict[int, Tensor] = {}
    containers: list[Any] = []
    met: set[int] = set()
    waiting = deque((function, 0) for function in functions if function is not None)
    while waiting:
        value, depth = waiting.popleft()
        if id(value) in met or depth > DEPTH:
            continue
        met.add(id(value))
        if isinstance(value, nn.Module):
            modules[id(value)] = value
        elif isinstance(value, Tensor):
            if _can_be_put_back(value):
                tensors[id(value)] = value
        else:
            if type(value) in CONTAINERS and len(value) <= MOST_ITEMS:
                containers.append(value)
            waiting.extend((reached, depth + 1) for reached in _reached_from(value, depth == 0))
    return Held(list(modules.values()), list(tensors.values()), containers)


def of_forwards(model: nn.Module) -> Iterator[Any]:
    """Yields the forwards of a user's own modules, and their unregistered attributes."""
    for module in model.modules():
        if not of_library(type(module)):
            yield type(module).forward
            yield tuple(value for name, value in vars(module).items() if not name.startswith("_"))


def _reached_from(value: Any, called: bool) -> Iterator[Any]:
    """Yields what one value leads to; the attributes of an object only if it is ``called``."""
    if isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        yield value.__func__
        if isinstance(value.__self__, nn.Module):
            yield value.__self__
        else:
            yield from getattr(value.__self__, "__dict__", {}).values()
    elif isinstance(value, FunctionType):
        if not of_library(value):
            yield from (item for _, item in around(value))
    elif isinstance(value, _BUILT_IN):
        yield from items_in(value, MOST_ITEMS) or ()
    elif type(value).__module__.startswith("staticgraph."):  # a runner
        yield getattr(value, "model", None)
    elif called:
        yield from getattr(value, "__dict__", {}).values()
        yield type(value).__dict__.get("__call__")


def items_in(value: Any, most: int) -> Iterable[Any] | None:
    """The items of a container as its built-in type has them, since a subclass may refuse to tell
    its length (e3nn's ``Irreps``); None if they are more than ``most``."""
    kind = next(kind for kind in _BUILT_IN if isinstance(value, kind))
    if kind.__len__(value) > most:
        return None
    return dict.values(value) if kind is dict else kind.__iter__(value)


def around(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields what a function finds by name outside of its arguments: enclosing variables, defaults
    and globals."""
    code, defaults = function.__code__, function.__defaults__ or ()
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is still empty
            yield name, cell.cell_contents
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults, strict=False)
    yield from (function.__kwdefaults__ or {}).items()
    for name in globals_in(code):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def names_in(code: CodeType) -> Iterator[str]:
    """Yields the globals and attributes that code names, including those of nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


@functools.lru_cache(maxsize=1024)
def globals_in(code: CodeType) -> tuple[str, ...]:
    """Returns the globals that code may read, including those that nested functions read.

    Attributes are not included: they often share a name with a notebook variable (``data.x``,
    ``self.loss``).
    """
    names = [step.argval for step in dis.get_instructions(code) if step.opname in _READS]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += globals_in(constant)
    return tuple(dict.fromkeys(names))


def _can_be_put_back(tensor: Tensor) -> bool:
    """Whether the tensor can be written to, and is small enough to be kept."""
    if is_lazy(tensor) or tensor.layout is not torch.strided or tensor.is_inference():
        return False
    once = all(step or size < 2 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
    small = tensor.numel() * tensor.element_size() <= LARGEST_BYTES
    return once and small and tensor.is_leaf
