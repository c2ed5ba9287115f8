"""Removes calls whose result is never read, and merges duplicate calls."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph

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
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    DIV,
    GATHER,
    MUL,
    SELECT,
    SHAPES,
    SUB,
    Call,
    is_fenced,
)

# Functions without side effects that draw no random numbers.
_PURE = {
    *(
        ADD,
        SUB,
        MUL,
        DIV,
        GATHER,
        SELECT,
        F.relu,
        F.silu,
        F.gelu,
        F.leaky_relu,
        F.linear,
        F.embedding,
    ),
    *(operator.getitem, operator.add, operator.sub, operator.mul, operator.truediv),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.and_, operator.or_, operator.invert, operator.neg),
    *(torch.where, torch.cat, torch.stack, torch.zeros, torch.ones, torch.arange, torch.full),
    *(torch.zeros_like, torch.ones_like, torch.exp, torch.unbind, torch.unsqueeze, torch.isnan),
    *(torch.narrow, torch.split, torch.neg, torch.transpose, torch.Tensor.view, torch.sigmoid),
    *(torch.empty_like, torch.reshape, torch.squeeze, torch.flatten, torch.sum),
    *(torch.einsum, torch.matmul, torch.bmm, operator.matmul),
    *(torch.Tensor.contiguous, torch.bincount, torch.pow, torch.square, torch.sqrt, torch.rsqrt),
    *(torch.tanh, torch.sin, torch.cos, torch.log, torch.abs, torch.clamp, torch.reciprocal),
    *(F.softplus, F.elu, F.tanh, F.sigmoid, F.layer_norm, F.normalize, torch.linalg.norm),
    operator.pow,
    *(scattered, softmaxed, gcn_normed, loops_added, loops_remaining, loops_removed),
    *(placed, laid_out, read_back, attendable),
    *(table_sum, fold_codes, order_edges, ORDER_EDGES),
}
_PURE_METHODS = {
    *SHAPES,
    *("expand", "expand_as", "new_zeros", "new_ones", "new_full", "to", "long", "float", "double"),
    *("sqrt", "masked_fill", "narrow", "log", "sigmoid", "index_copy", "matmul", "bmm"),
    *("sum", "mean", "clamp", "detach", "transpose", "t", "permute", "repeat", "type_as", "unbind"),
    *(
        "diff",
        "argsort",
        "square",
        "rsqrt",
        "pow",
        "eq",
        "tanh",
        "sin",
        "cos",
        "abs",
        "exp",
        "norm",
        "squeeze",
        "split",
        "size",
        "index_select",
        "select",
        "scatter_add",
    ),
}


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
    if node.op == "call_function":
        return node.target in _PURE
    if node.op == "call_method":
        return node.target in _PURE_METHODS
    return node.op == "get_attr"


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
