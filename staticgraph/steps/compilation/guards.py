"""The guards of a captured step: later calls check only what the runner does not already know.

The problem: around each call torch.compile checks a thousand things that were traced by value, half
of which cannot have changed: functions and classes of torch, PyG and this library, shapes that the
runner has checked, cells of a function that this library made. The idea: those guards are dropped
before torch builds any, and if the remaining ones hold, the function that Dynamo wrote is called
directly, without frame evaluation. If one does not hold, torch.compile is called, and reports
what changed.

Invariant: whatever a user can change between two steps (a module's attributes, parameters, flags
and hooks, what its forward reads of the user's own modules and globals, torch's own modes and
flags) is guarded as torch guards it.

The problem of checkpointed parts, which a backward runs again: torch keeps the inputs of such a
part and, in the backward, finds that the part itself has written to them, as BatchNorm does to its
running statistics. Compilers move such writes out of the part. A graph that runs as it is cannot,
and its backward would end in an autograd error that names neither the part nor a remedy. The idea:
the first run compares the versions of the inputs of such parts. Graphs without them, and later
runs, are not checked.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import (
    enter_autocast,
    set_grad_enabled,
    switched_back,
    version_of,
)
from staticgraph.internals.tracing import (
    as_usual,
    drop_guards,
    switched,
    traced,
    unwatched,
    watched,
)
from staticgraph.steps.tracing.obstacles import place_of

HOME = "staticgraph.steps.computation.computation"  # where the steps' functions are made
# Dynamo's names for guards of identity, on things that are fixed once a library is imported.
_IDENTITIES = (
    *("CLOSURE_MATCH", "MODULE_MATCH", "CLASS_MATCH", "BUILTIN_MATCH", "FUNCTION_MATCH"),
    *("ID_MATCH", "DUPLICATE_INPUT"),
)
# Names in the traced function's own module, and modules of the libraries, as guards write them.
_LIBRARY = re.compile(
    r"G\['(?!__)|G\['__builtins_dict__|G\['__import_(torch|torch_geometric|staticgraph)_"
)
_OURS = re.compile(r"G\['(?!__)|G\['__import_staticgraph_|.*\.torch_geometric\.typing\.")
# The scope in which a named tuple's class was made, and Dynamo's own names for imported modules.
_MADE = re.compile(r"G\['___unnamed_scope_\w+'\](\['_tuple_new'\].*)?$|G\['__import_\w+'\]$")
# Cells, set once, of the function that ``Computation.of_tensors`` makes; the class of its context.
_CELLS = re.compile(
    r"L\['(layout|names|known|work|leaves|any_bucket)'\]|L\['run'\]\.__self__\.context\)"
)
# Prefixes of guards on an object's class and on what it holds, which the patterns ignore.
_CLASS = re.compile(r"^(dict\()?(type\()?")
# These attributes of a module are always dictionaries, and its layers were converted together.
_OF_MODULES = ("._parameters", "._buffers", "._modules")


def drop_what_is_known(function: Callable[..., Any]) -> int:
    """Drops the guards of what cannot change; returns how many are left.

    A backend calls it after the rewrites.

    Args:
        function: the function being traced; its own module and cells are known if it is from
            :data:`HOME`. Its graph runs operation by operation, so that torch itself sees what a
            tensor is.
    """
    ours = function.__module__ == HOME

    def dropped(kind: str, name: str) -> bool:
        """Whether a guard checks something that is known without it."""
        if kind == "TENSOR_MATCH":
            return True
        if not ours:
            return False
        if kind == "SHAPE_ENV":  # a shared trace checks once per bucket whether its sizes fit
            return True
        name = _CLASS.sub("", name)
        if _CELLS.match(name):
            return True
        if "._global_" in name:  # hooks of all modules
            return False
        if kind == "TYPE_MATCH" and name.endswith(_OF_MODULES):
            return True
        if kind == "DUPLICATE_INPUT" and name.endswith("._staticgraph"):
            return True
        if _OURS.match(name) or _MADE.match(name):
            return True
        return kind in _IDENTITIES and _LIBRARY.match(name) is not None

    return drop_guards(dropped)


# torch compiles one function at a time, and its counters and settings are process-wide.
COMPILING = threading.RLock()


class GuardedCall:
    """A function that torch.compile has traced once, called again.

    Args:
        function: the function that was compiled, of tensors alone, ``def function(*tensors)``.
        call: what ``torch.compile`` returned for it.
    """

    def __init__(self, function: FunctionType, call: Callable[..., Any]) -> None:
        self._call = call
        self._traced = traced(function)
        code = function.__code__
        if code.co_argcount or not code.co_flags & 4:  # it takes something other than *tensors
            self._traced = None
        cells = function.__closure__ or ()
        self._locals = {
            name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)
        }
        self._parameter = code.co_varnames[0] if code.co_varnames else ""

    def holds(self, tensors: tuple[Tensor, ...]) -> bool:
        """Whether all guards hold for these tensors."""
        traced = self._traced
        return traced is not None and traced.holds({**self._locals, self._parameter: tensors})

    def __call__(self, tensors: tuple[Tensor, ...]) -> Any:
        """Returns the function's result; raises what ``torch.compile`` raises if a guard fails."""
        traced = self._traced
        if traced is None or not as_usual():
            return self._call(*tensors)
        bindings = {**self._locals, self._parameter: tensors}
        if traced.holds(bindings):
            return traced.run(*tensors)
        if not watched():
            return self._refused(*tensors)
        with unwatched():
            if not traced.holds(bindings):
                return self._refused(*tensors)
        return traced.run(*tensors)  # watched operation by operation, as it would be untraced

    def _refused(self, *tensors: Tensor) -> Any:
        """Calls torch.compile's function after a guard failed; raises before it traces again."""
        with COMPILING, switched(error_on_recompile=True):
            return self._call(*tensors)


_PART = torch.ops.higher_order.tag_activation_checkpoint


def checked(graph: torch.fx.GraphModule, name: str) -> Callable[..., Any]:
    """Returns the graph's forward, which at its first run refuses parts that write to their inputs.

    The writes are undone, and after an error gradients and autocast are as before.

    Args:
        graph: as Dynamo captured it.
        name: what messages call it.

    Raises (when called):
        NotStatic: such a part writes.
    """
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    forward: Callable[..., Any] = graph.forward
    if any(node.target in (enter_autocast, set_grad_enabled) for node in graph.graph.nodes):
        forward = switched_back()(graph.forward)
    parts = [node for node in graph.graph.nodes if node.target is _PART]
    read = {arg: part for part in parts for arg in part.args if arg in placeholders}
    if not read:
        return forward
    places = [(number, read[node]) for number, node in enumerate(placeholders) if node in read]
    passed = False

    def run(*inputs: Any) -> Any:
        """Runs the graph; the first time, also checks whether inputs change."""
        nonlocal passed
        if passed:
            return forward(*inputs)
        before = [
            (value, version_of(value), value.detach().clone(), part)
            for number, part in places
            if isinstance(value := inputs[number], Tensor)
        ]
        result = forward(*inputs)
        written = [
            before_run for before_run in before if version_of(before_run[0]) != before_run[1]
        ]
        with torch.no_grad():
            for value, _, was, _ in written:
                value.copy_(was)
        if written:
            where, line = place_of(written[0][3].stack_trace or "")
            raise NotStatic(
                f"{name}: activation checkpointing runs a part of the forward again, which writes "
                f"to a buffer (running statistics of a norm, a counter), at {where}: {line}; "
                "its second run would write again: give mode='eager' or a compiled one, or leave "
                "the norm out of the checkpointed block"
            )
        passed = True
        return result

    return run
