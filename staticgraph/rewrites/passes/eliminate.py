"""Removes calls whose result is never read, and merges duplicate calls."""

from __future__ import annotations

import operator
import re
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph

from staticgraph.internals.dispatch import OpOverload, OpOverloadPacket
from staticgraph.kernels.edges import ORDER_EDGES, order_edges
from staticgraph.kernels.table_sum import fold_codes, table_sum
from staticgraph.nn.context.dense_layout import attendable, laid_out, placed, read_back
from staticgraph.nn.functions import scattered, softmaxed
from staticgraph.nn.utils.self_loops import (
    gcn_normed,
    loops_added,
    loops_remaining,
    loops_removed,
)
from staticgraph.rewrites.captured_graph.canonical_ops import GATHER, Call, is_fenced

# Functions of this library and of Python that have no effect other than their result, and methods
# that are no operator of torch.
_PURE = {
    GATHER,
    *(operator.getitem, operator.add, operator.sub, operator.mul, operator.truediv, operator.pow),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.and_, operator.or_, operator.invert, operator.neg, operator.matmul),
    *(scattered, softmaxed, gcn_normed, loops_added, loops_remaining, loops_removed),
    *(placed, laid_out, read_back, attendable, F.normalize),
    *(table_sum, fold_codes, order_edges, ORDER_EDGES),
    *("long", "float", "double"),
}
# Names of operators that are private, or have an effect that their schema does not tell.
_EFFECTS = "^_|batch_norm|instance_norm|backward|item|is_nonzero"


def drop_unread(graph: Graph) -> None:
    """Removes calls without users, from the end of the graph."""
    for node in reversed(list(graph.nodes)):
        if node.users or not is_pure(node):
            continue
        graph.erase_node(node)


def is_pure(node: Call) -> bool:
    """Whether a call has no effect other than its result."""
    if node.meta.get("writes") or node.meta.get("inserted"):
        return bool(node.meta.get("inserted"))  # by a rewrite, for its result
    if node.op not in ("call_function", "call_method"):
        return node.op == "get_attr"
    return node.target in _PURE or _is_pure_operator(node.target)


@cache
def _is_pure_operator(target: Any) -> bool:
    """Whether a method, or a function of torch, is an operator that by its schema neither changes
    an argument nor draws random numbers."""
    name = target
    if not isinstance(target, str):
        module = getattr(target, "__module__", None) or "torch"  # a method, and most functions
        if not module.startswith("torch.") and module != "torch":
            return False
        name = getattr(target, "__name__", "")
    operators = getattr(torch.ops.aten, name, None)
    if re.search(_EFFECTS, name) or not isinstance(operators, OpOverloadPacket):
        return False
    return not any(map(_has_effect, (getattr(operators, each) for each in operators.overloads())))


def _has_effect(operator: OpOverload) -> bool:
    changes = operator._schema.is_mutable and not any(a.is_out for a in operator._schema.arguments)
    return changes or torch.Tag.nondeterministic_seeded in operator.tags


def drop_twins(graph: Graph) -> None:
    """Merges equal calls on equal operands.

    Layers of one model, and loops over one layer, repeat such calls: the edge network of a layer
    that is called three times, for example.
    """
    seen: dict[Any, Call] = {}
    for node in list(graph.nodes):
        once = node.op in ("call_function", "call_method") and is_pure(node)
        if not once or any(map(_changes, (node, *node.all_input_nodes))) or is_fenced(node):
            continue
        key = (node.op, node.target, _frozen(node.args), _frozen(node.kwargs))
        twin = seen.setdefault(key, node)
        if twin is not node:
            node.replace_all_uses_with(twin)
            graph.erase_node(node)


def _changes(node: Call) -> bool:
    """Whether the memory of a node is written to."""
    return bool(node.meta.get("written"))


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(_frozen, value))
    if isinstance(value, dict):
        return tuple((key, _frozen(value[key])) for key in sorted(value))
    if isinstance(value, slice):
        return ("slice", _frozen(value.start), _frozen(value.stop), _frozen(value.step))
    if isinstance(value, float):
        return repr(value)  # 0.0 and -0.0 are equal, and their products are not
    return (type(value).__name__, value) if isinstance(value, bool | int) else value
