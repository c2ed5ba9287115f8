"""Brings the many forms of an operation into one canonical form: the pass before all rewrites.

Invariant: the graph computes the same as before. Unknown forms, and in-place changes that
:mod:`staticgraph.rewrites.passes.functionalize` left, stay as they are.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from staticgraph.rewrites.captured_graph import canonical_ops
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    DIV,
    GATHER,
    MUL,
    SCATTER,
    SELECT,
    SUB,
    Call,
    calls,
    dtype,
    is_call,
    is_method,
    tensor,
)
from staticgraph.rewrites.captured_graph.captured import Captured

_BINARY = {
    ADD: (operator.add, torch.add, "add"),
    SUB: (operator.sub, torch.sub, "sub"),
    MUL: (operator.mul, torch.mul, torch.multiply, "mul", "multiply"),
    DIV: (operator.truediv, torch.div, "div"),
}
_UNARY = {
    F.relu: (F.relu, torch.relu, "relu"),
    F.silu: (F.silu,),
    F.gelu: (F.gelu,),
    F.leaky_relu: (F.leaky_relu,),
    torch.exp: (torch.exp, "exp"),
}
_CANONICAL = {
    form: op for table in (_BINARY, _UNARY) for op, forms in table.items() for form in forms
}
_DIFFERENCES = (*_BINARY[SUB], torch.subtract, torch.rsub, operator.neg, torch.neg, "neg")
_FILLING = (*_BINARY[ADD], torch.where, "where", "masked_fill", torch.full, "new_full")
_CLAMPS = (torch.clamp, "clamp", torch.clip, "clip", torch.clamp_min, "clamp_min")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
_REDUCED = {"sum": "sum", "prod": None, "mean": "mean", "amax": "max", "amin": "min"}
# Operations whose result is a new tensor.
_FRESH = (ADD, SUB, MUL, DIV, *_UNARY, F.linear, F.embedding, GATHER, SCATTER)


def canonicalize(captured: Captured) -> None:
    """Rewrites every node that has a canonical form."""
    for node in list(captured.graph.nodes):
        _alias(node)
    for node in list(captured.graph.nodes):
        _binary(node)
        _gather(node)
        _others(captured, node)
        _reduction(captured, node)


def _alias(node: Call) -> None:
    """Bypasses calls that return their operand, such as conversions to its own dtype."""
    if not is_method(node, "to", "long", "float", "double", "type_as", "contiguous"):
        return
    operand, result = tensor(node.args[0]), tensor(node)
    if (
        operand is not None
        and result is not None
        and canonical_ops.storage(operand) == canonical_ops.storage(result)
    ):
        node.replace_all_uses_with(node.args[0])


def _argument(node: Call, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _binary(node: Call) -> None:
    if node.op not in ("call_function", "call_method") or node.meta.get("writes"):
        return
    op = _CANONICAL.get(node.target)
    if op is None or not isinstance(node.args[0] if node.args else None, Node | int | float):
        return
    if op in _BINARY:
        if node.kwargs or len(node.args) != 2 or tensor(node) is None:
            return
        first, second = node.args
        if not isinstance(first, Node):  # a number first
            if op not in (ADD, MUL):
                return
            first, second = second, first
        if tensor(first) is None:
            return
        if op is ADD and _is_zero(second) and _may_stand_for(first, node):
            node.replace_all_uses_with(first)
            return
        node.args = (first, second)
    elif op is F.leaky_relu:
        node.args, node.kwargs = (node.args[0], _argument(node, 1, "negative_slope", 0.01)), {}
    elif op is F.gelu:
        if node.kwargs:
            return
    elif op in _UNARY:
        node.args, node.kwargs = node.args[:1], {}
    node.op, node.target = "call_function", op


def _may_stand_for(first: Call, node: Call) -> bool:
    """Whether a tensor may replace its sum with zero, which has no negative zeros."""
    changes = first.meta.get("written") or node.meta.get("written") or canonical_ops.is_fenced(node)
    added = all(_CANONICAL.get(user.target) in (ADD, SUB) for user in node.users)
    return not changes and added and canonical_ops.is_float(first) and is_call(first, *_FRESH)


def _is_zero(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and number == 0


def _gather(node: Call) -> None:
    """Unifies ``x[index]`` and ``index_select`` of rows, ``x[0]`` and ``unbind``."""
    if calls(node, torch.index_select) or is_method(node, "index_select"):
        operands = _arguments(node, ("self", "dim", "index"))
        fake = None if operands is None else tensor(operands[0])
        if operands is None or fake is None or not fake.dim():
            return
        x, dim, index = operands
        if dim % fake.dim() == 0:
            node.op, node.target, node.args, node.kwargs = (
                "call_function",
                GATHER,
                (x, 0, index),
                {},
            )
        return
    if not is_call(node, operator.getitem) or tensor(node) is None:
        if is_method(node, "select") and (operands := _arguments(node, ("self", "dim", "index"))):
            node.op, node.target, node.args, node.kwargs = "call_function", SELECT, operands, {}
        return
    base, key = node.args
    if is_call(base, torch.unbind) or is_method(base, "unbind"):
        dim = _argument(base, 1, "dim", 0)
        if isinstance(key, int):
            node.target, node.args = SELECT, (base.args[0], dim, key)
        return
    if tensor(base) is None:
        return
    if isinstance(key, bool):
        return
    if isinstance(key, int):
        node.target, node.args = SELECT, (base, 0, key)
    elif isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None) and _is_int(key[1]):
        node.target, node.args = SELECT, (base, 1, key[1])
    elif isinstance(key, tuple) and (dim := _new_dimension(key, tensor(node))) is not None:
        node.op, node.target, node.args = "call_method", "unsqueeze", (base, dim)
    elif isinstance(key, Node):
        index = tensor(key)
        vector = index is not None and index.dim() == 1 and index.dtype == torch.int64
        if vector and not _may_be_negative(key):
            node.target, node.args = GATHER, (base, 0, key)


def _may_be_negative(index: Call) -> bool:
    """Whether a difference or a negative number is part of integers, and not clamped to zero or
    more: ``x[index]`` then counts rows from the end, which ``index_select`` does not."""
    left, seen = [index], {index}
    while left:
        node = left.pop()
        if node.target in _CLAMPS:
            least = _argument(node, 1, "min", None)
            if isinstance(least, int) and least >= 0:
                continue
        numbers = (*node.args, *node.kwargs.values()) if node.target in _FILLING else ()
        if node.target in _DIFFERENCES or any(map(_is_negative, numbers)):
            return True
        operands = set(node.all_input_nodes) - seen
        seen |= operands
        left += [operand for operand in operands if dtype(operand) in _INTEGERS]
    return False


def _is_negative(number: Any) -> bool:
    return isinstance(number, int | float) and number < 0


def _new_dimension(key: tuple[Any, ...], result: Tensor | None) -> int | None:
    """The position of the one dimension that ``x[..., None]`` or ``x[:, None]`` inserts; None if it
    does something else."""
    whole = all(entry is None or entry is Ellipsis or entry == slice(None) for entry in key)
    if result is None or not whole or key.count(None) != 1 or key.count(Ellipsis) > 1:
        return None
    at = key.index(None)
    before = Ellipsis in key[:at]
    return result.dim() - len(key) + at if before else at


def _is_int(key: Any) -> bool:
    return isinstance(key, int) and not isinstance(key, bool)


def _arguments(node: Call, names: tuple[str, ...]) -> tuple[Any, ...] | None:
    values = list(node.args)
    for name in names[len(values) :]:
        key = "input" if name == "self" else name
        if key not in node.kwargs:
            return None
        values.append(node.kwargs[key])
    return tuple(values)


def _others(captured: Captured, node: Call) -> None:
    if calls(node, F.linear):
        operands = [*node.args, *(None,) * (3 - len(node.args))]
        for place, name in enumerate(("input", "weight", "bias")):
            operands[place] = node.kwargs.get(name, operands[place])
        node.target, node.args, node.kwargs = F.linear, tuple(operands), {}
    elif calls(node, F.dropout, torch.dropout) and not node.meta.get("writes"):
        p, training = _argument(node, 1, "p", 0.5), _argument(node, 2, "training", True)
        training = node.kwargs.get("train", training)
        if p == 0 or not training:  # torch returns its operand, and draws nothing
            node.replace_all_uses_with(node.args[0])
            captured.graph.erase_node(node)
        else:
            node.target, node.args, node.kwargs = F.dropout, (node.args[0], p, True), {}


def _reduction(captured: Captured, node: Call) -> None:
    """Turns additions into zeros by an index into PyG's ``scatter``."""
    reduction = None
    if is_method(node, "index_add", "index_add_") or is_call(node, torch.index_add):
        operands = _arguments(node, ("self", "dim", "index", "source"))
        if operands and node.kwargs.get("alpha", 1) == 1:
            reduction = (*operands, "sum")
    elif is_method(node, "scatter_add", "scatter_add_") or is_call(node, torch.scatter_add):
        operands = _arguments(node, ("self", "dim", "index", "src"))
        if operands:
            reduction = (*operands, "sum")
    elif is_method(node, "scatter_reduce", "scatter_reduce_") or is_call(
        node, torch.scatter_reduce
    ):
        operands = _arguments(node, ("self", "dim", "index", "src", "reduce"))
        if operands:
            include_self = node.kwargs.get("include_self", True)
            reduce = _REDUCED.get(operands[4])
            if reduce is not None and (reduce == "sum" or include_self is False):
                reduction = (*operands[:4], reduce)
    if reduction is None:
        return
    into, dim, index, src, reduce = reduction
    into_value, src_value, by = tensor(into), tensor(src), tensor(index)
    index = _expanded(index)
    if index is None or into_value is None or not _zeros(into):
        return
    if src_value is None or not src_value.dim():
        return
    if by is not None and by.dim() > 1 and by.shape != src_value.shape:
        return  # torch leaves out the rows and columns of src that the index does not cover
    if not used_alone(into, node) or dim % src_value.dim() != 0:
        return
    if src_value.dtype != into_value.dtype or src_value.shape[1:] != into_value.shape[1:]:
        return
    groups = (canonical_ops.shape(into) or (0,))[0]
    rows = captured.before(node, SCATTER, src, index, 0, groups, reduce)
    captured.replace(node, rows)


def used_alone(into: Call, node: Call) -> bool:
    """Whether ``node`` is the only user of the tensor that it adds into."""
    return list(into.users) == [node]


def _expanded(index: Any) -> Call | None:
    """The vector that an index was broadcast from along the first dimension, or None."""
    while True:
        fake = tensor(index)
        if fake is None:
            return None
        if fake.dim() == 1 and not _same_expand(index):
            return index
        if is_method(index, "expand", "expand_as", "view", "reshape", "unsqueeze", "repeat"):
            if is_method(index, "repeat") and index.args[1:][:1] != (1,):
                return None
            below = tensor(index.args[0])
            if below is None or below.size(0) != fake.size(0):
                return None
            if below.dim() == 1 and fake.stride(0) == 0:  # [E] as rows of [E, E]
                return None
            index = index.args[0]
        elif is_call(index, operator.getitem) and _unsqueezes(index.args[1]):
            index = index.args[0]
        else:
            return None


def _same_expand(index: Call) -> bool:
    """Whether an index is broadcast to the shape that it has (torch_scatter does)."""
    return is_method(index, "expand", "expand_as") and canonical_ops.shape(
        index.args[0]
    ) == canonical_ops.shape(index)


def _unsqueezes(key: Any) -> bool:
    return isinstance(key, tuple) and key[0] == slice(None) and all(k is None for k in key[1:])


def _zeros(node: Any) -> bool:
    return is_method(node, "new_zeros") or is_call(node, torch.zeros, torch.zeros_like)
