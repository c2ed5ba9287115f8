"""The few canonical operations in which rewrites read a graph, each in one form.

Dynamo's graph expresses one operation in many ways: ``x + y`` is an operator, a method, a function
or in place; a gather is ``x[index]`` or ``index_select``; a sum by an index is ``index_add``,
``scatter_add`` into zeros or PyG's ``scatter``. :mod:`staticgraph.rewrites.passes.canonicalize`
turns all of them into the operations below, and a rewrite knows no others.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node
from torch.multiprocessing.reductions import StorageWeakRef

from staticgraph.nn.functions import scattered

# A node of torch.fx. Its arguments are typed as anything that a graph can hold, so values read from
# a node are checked at run time.
Call = Any

ADD, SUB, MUL, DIV = torch.add, torch.sub, torch.mul, torch.div
RELU, SILU, GELU, LEAKY_RELU = F.relu, F.silu, F.gelu, F.leaky_relu
ACTIVATIONS: dict[Callable[..., Any] | str, str] = {
    RELU: "relu",
    SILU: "silu",
    GELU: "gelu",
    LEAKY_RELU: "leaky_relu",
}
LINEAR, DROPOUT, EMBEDDING = F.linear, F.dropout, F.embedding
GATHER = torch.index_select  # (x, 0, index)
# (x, dim, place); not torch.select, which PyG replaces by a function of its own.
SELECT = torch.Tensor.select
SCATTER = scattered  # (src, index, dim, groups, reduce)
_SHAPED = (torch.flatten, torch.unsqueeze, torch.squeeze, torch.reshape)
SHAPES = ("view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "contiguous")


# The number of arguments of a canonical operation, none of them by keyword: a call of its function
# in another form, such as torch.add with alpha, is not canonical.
_ARGUMENTS = {
    **dict.fromkeys((ADD, SUB, MUL, DIV, LEAKY_RELU), 2),
    **dict.fromkeys((RELU, SILU, GELU), 1),
    **dict.fromkeys((LINEAR, DROPOUT, GATHER, SELECT), 3),
}


def calls(node: Any, *targets: Any) -> bool:
    """Whether a node calls one of these functions, in any form."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def is_call(node: Any, *targets: Any) -> bool:
    """Whether a node calls one of these functions in its canonical form, outside of regions, and
    its result stays what the call gave: nothing writes to it."""
    return calls(node, *targets) and not _is_opaque(node) and _in_form(node)


def _in_form(node: Call) -> bool:
    number = _ARGUMENTS.get(node.target)
    if number is None:
        return True
    rows = node.target is not GATHER or len(node.args) < 2 or node.args[1] == 0
    return rows and len(node.args) == number and not node.kwargs


def is_method(node: Any, *names: str) -> bool:
    """Whether a node calls a method of one of these names, outside of regions."""
    named = isinstance(node, Node) and node.op == "call_method" and node.target in names
    return named and not _is_opaque(node)


def _is_opaque(node: Call) -> bool:
    return is_fenced(node) or bool(node.meta.get("written"))


def fence(node: Call) -> None:
    """Excludes a node from all rewrites; see :mod:`staticgraph.rewrites.passes.regions`."""
    node.meta["fenced"] = True


def is_fenced(node: Any) -> bool:
    """Whether a node is excluded from all rewrites."""
    return isinstance(node, Node) and bool(node.meta.get("fenced"))


def value(node: Any) -> Any:
    """The value that Dynamo's trace saw at a node: a fake tensor, a tuple of them, or a number."""
    if not isinstance(node, Node):
        return node
    return node.meta.get("example_value", node.meta.get("val"))


def tensor(node: Any) -> Tensor | None:
    """The fake tensor of a node's result; None if the result is not a tensor."""
    result = value(node)
    return result if isinstance(node, Node) and isinstance(result, Tensor) else None


def shape(node: Any) -> tuple[int, ...] | None:
    """The shape of a node's tensor; None for anything else."""
    fake = tensor(node)
    return None if fake is None else tuple(map(_known, fake.shape))


def _known(size: int | torch.SymInt) -> int:
    """A size as a number, also one that was read from data and can only be this number."""
    number = size if isinstance(size, int) else size.node.maybe_as_int()
    return cast("int", size) if number is None else number


def dtype(node: Any) -> torch.dtype | None:
    """The dtype of a node's tensor; None for anything else."""
    fake = tensor(node)
    return None if fake is None else fake.dtype


def is_float(node: Any) -> bool:
    """Whether a node's result is a floating-point tensor."""
    kind = dtype(node)
    return kind is not None and kind.is_floating_point


def storage(of: Tensor) -> int:
    """A number that is equal for two tensors that share memory."""
    try:
        return StorageWeakRef(of.untyped_storage()).cdata
    except (NotImplementedError, RuntimeError):  # sparse, or a subclass without its own memory
        return id(of)


def drops_nothing(node: Call) -> bool:
    """Whether a dropout returns its operand itself, which the trace shows as a separate tensor."""
    if not calls(node, F.dropout, torch.dropout) or not isinstance(node.args[0], Node):
        return False
    p = argument(node, 1, "p", 0.5)
    training = argument(node, 2, "training", True)
    return p == 0 or not node.kwargs.get("train", training)


def used_once(node: Call) -> bool:
    """Whether a single node reads this one."""
    return len(node.users) == 1


def only_user(node: Any) -> Any:
    """The single node that reads this one; None if there are others or none."""
    return next(iter(node.users)) if isinstance(node, Node) and used_once(node) else None


def added_to(node: Call) -> tuple[Any, Any]:
    """The sum, of the shape of a node, that alone reads it, and what it adds; None twice if there
    is none."""
    total = only_user(node)
    if not is_call(total, ADD) or shape(total) != shape(node):
        return None, None
    return total, total.args[1] if total.args[0] is node else total.args[0]


def argument(node: Call, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def under_shape(node: Any) -> Any:
    """A node without the views and reshapes around it."""
    while is_method(node, *SHAPES) or is_call(node, *_SHAPED):
        node = node.args[0]
    return node


def item(node: Any, place: int) -> Any:
    """The node that takes one item of a node's tuple, or None."""
    for user in node.users:
        if is_call(user, operator.getitem) and user.args[1] == place:
            return user
    return None


def sides(node: Call) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The two operands of a node, in both orders."""
    first, second = node.args[:2]
    return (first, second), (second, first)


_OF_MODEL = re.compile(r"^l_(run_)?self_(model_)?|_$")
_OF_MODULE = re.compile(r"_?(modules|parameters|buffers)_")


def name_of(node: Call) -> str:
    """The name of a node, of a parameter or buffer as in the model."""
    if node.op != "placeholder":
        return node.name
    name = _OF_MODULE.sub(".", _OF_MODEL.sub("", node.name)).strip(".")
    return name.replace("l_tensors_", "field_")


def target_name(node: Call) -> str:
    """The name of what a call calls, for messages."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return str(name)
