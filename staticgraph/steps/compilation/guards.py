"""Guards of a captured step: later calls ask only what the runner does not know anyway.

The problem: around each call torch.compile looks at a thousand things that were traced by their
value, half of which cannot have changed: functions and classes of torch, of PyG and of this
library, shapes that the runner has checked, cells of a function that this library made. The idea:
those guards are dropped before torch builds any, and the function that Dynamo wrote is called
directly where the rest hold, without the frame evaluation around it. Where one does not hold,
torch.compile is called as ever, and says what changed.

Invariant: what a user can change between two steps (a module's attributes, parameters, flags and
hooks, what its forward reads of his own modules and globals, torch's own modes and flags) is
guarded as torch guards it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import Tensor

from staticgraph.internals.tracing import as_usual, drop_guards, traced, unwatched, watched
from staticgraph.rewrites import Captured

HOME = "staticgraph.steps.computation.computation"  # where the functions of steps are made
# What is fixed once a library is imported, by Dynamo's words for guards: identities.
_IDENTITIES = (
    *("CLOSURE_MATCH", "MODULE_MATCH", "CLASS_MATCH", "BUILTIN_MATCH", "FUNCTION_MATCH"),
    *("ID_MATCH", "DUPLICATE_INPUT"),
)
# Names in the traced function's own module, and modules of the libraries, as guards write them.
_LIBRARY = re.compile(
    r"G\['(?!__)|G\['__builtins_dict__|G\['__import_(torch|torch_geometric|staticgraph)_"
)
_OURS = re.compile(r"G\['(?!__)|G\['__import_staticgraph_|.*\.torch_geometric\.typing\.")
# What a named tuple's class was made in, and Dynamo's own names for imported modules.
_MADE = re.compile(r"G\['___unnamed_scope_\w+'\](\['_tuple_new'\].*)?$|G\['__import_\w+'\]$")
# Cells of the function that ``Computation.of_tensors`` makes, set once; this library's own class.
_CELLS = re.compile(r"L\['(layout|names|known|work|leaves)'\]|L\['run'\]\.__self__\._context\)")
# A class of an object, and what it holds, by their names.
_CLASS = re.compile(r"^(dict\()?(type\()?")
# A module's own dictionaries are dictionaries, and its layers were converted together.
_OF_MODULES = ("._parameters", "._buffers", "._modules")


def drop_what_is_known(function: Callable[..., Any], captured: Captured | None) -> int:
    """Called by a backend after the rewrites: drops the guards of what cannot change; how many
    are left.

    Args:
        function: that is traced; its own module and cells are known where it is of :data:`HOME`.
        captured: the rewritten graph, which runs operation by operation, so that torch itself sees
            what a tensor is; but for tensors of which a rewrite asked whether they have a gradient.
    """
    relied = set() if captured is None else captured.relied
    ours = function.__module__ == HOME

    def dropped(kind: str, name: str) -> bool:
        """Whether a guard asks what is known without it."""
        if kind == "TENSOR_MATCH":
            return name not in relied
        if not ours:
            return False
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


class GuardedCall:
    """A function that torch.compile has traced once, called again.

    Args:
        function: of tensors alone, ``def function(*tensors)``; the one that was compiled.
        call: what ``torch.compile`` made of it.
    """

    def __init__(self, function: FunctionType, call: Callable[..., Any]) -> None:
        self._call = call
        self._traced = traced(function)
        code = function.__code__
        if code.co_argcount or not code.co_flags & 4:  # it takes something else than *tensors
            self._traced = None
        cells = function.__closure__ or ()
        self._locals = {
            name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)
        }
        self._given = code.co_varnames[0] if code.co_varnames else ""

    def __call__(self, tensors: tuple[Tensor, ...]) -> Any:
        """The function's result; raises what ``torch.compile`` raises where a guard fails."""
        found = self._traced
        if found is None or not as_usual():
            return self._call(*tensors)
        given = {**self._locals, self._given: tensors}
        if found.holds(given):
            return found.run(*tensors)
        if not watched():
            return self._call(*tensors)
        with unwatched():
            if not found.holds(given):
                return self._call(*tensors)
        return found.run(*tensors)  # seen operation by operation, as it would be without a trace
