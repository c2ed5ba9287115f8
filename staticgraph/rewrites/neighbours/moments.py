"""Reads means, variances and standard deviations of messages as models write them.

A mean is a sum over the number of edges, which is clamped to at least one; a variance the mean of
squares less the square of the mean; a standard deviation its root, zero up to a variance of 1e-5,
as PyG's aggregations write it. As one reduction each, they are computed in one pass, and a variance
keeps the digits that the difference of two means loses.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import Node

from staticgraph.kernels.neighbours.program import LEAST_VARIANCE
from staticgraph.rewrites.captured_graph.canonical_ops import (
    DIV,
    MUL,
    SCATTER,
    SUB,
    Call,
    is_call,
    is_method,
    shape,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.neighbours.pools import counts
from staticgraph.rewrites.passes.eliminate import drop_unread


def means(captured: Captured) -> None:
    """Rewrites every such quotient; equal ones are merged."""
    seen: dict[Any, Call] = {}
    for node in list(captured.graph.nodes):
        if not is_call(node, DIV) or not is_call(node.args[0], SCATTER):
            continue
        rows, index, dim, groups, reduce = node.args[0].args
        ours = captured.index(index) == "dst" and dim == 0 and groups == captured.nodes
        count = node.args[1]
        if not ours or reduce not in ("sum", "add") or len(shape(rows) or ()) != 2:
            continue
        if (
            not isinstance(count, Node)
            or shape(count) != (groups, 1)
            or not _count(captured, count)
        ):
            continue
        if rows not in seen:
            where = node.args[0]
            seen[rows] = captured.before(where, SCATTER, rows, index, 0, groups, "mean", like=where)
        captured.replace(node, seen[rows])
        _drop(captured, count)
    drop_unread(captured.graph)  # the sums, which are read by nothing but means


def _count(captured: Captured, node: Call) -> bool:
    """Whether these are the numbers of edges of each node, clamped to at least one."""
    clamped = under_shape(node)
    least = clamped.kwargs.get("min", clamped.args[1] if len(clamped.args) > 1 else None)
    if not is_method(clamped, "clamp", "clamp_") or least != 1 or set(clamped.kwargs) - {"min"}:
        return False
    counted = clamped.args[0]
    if is_call(counted, counts):
        return counted.args[0] is captured.all_edges.row_ptr and clamped.target == "clamp"
    return clamped.target == "clamp_" and _added(captured, counted, clamped) is not None


def _added(captured: Captured, zeros: Any, clamped: Call) -> Call | None:
    """The node that adds ones into zeros before they are clamped, if these are the only uses."""
    if not is_method(zeros, "new_zeros") or shape(zeros) != (captured.nodes,):
        return None
    readers = [node for node in captured.graph.nodes if node in zeros.users]
    if len(readers) != 2 or readers[1] is not clamped or readers[0].users:
        return None
    added = readers[0]
    if not is_method(added, "scatter_add_") or len(added.args) != 4:
        return None
    into, dim, index, ones = added.args
    plain = into is zeros and dim == 0 and captured.index(index) == "dst"
    ones = is_method(ones, "new_ones") or is_call(ones, torch.ones, torch.ones_like)
    return added if plain and ones else None


def _drop(captured: Captured, count: Call) -> None:
    """Removes an unread count, which is computed in place, from the graph."""
    if count.users:
        return
    clamped = under_shape(count)
    zeros = clamped.args[0]
    added = _added(captured, zeros, clamped) if clamped.target == "clamp_" else None
    if added is None or not (count is clamped or used_once(clamped)):
        return
    chain = []
    while count is not clamped:
        chain.append(count)
        count = count.args[0]
    for node in (*chain, clamped, added, zeros):
        if not node.users:
            captured.graph.erase_node(node)


def spread(squares: Call, mean: Call) -> tuple[str, Call] | None:
    """``var`` or ``std`` of a message, and the node that it replaces, where the means of its
    squares and of itself are read as one; else None."""
    if not used_once(squares):
        return None
    variance = next(iter(squares.users))
    if not is_call(variance, SUB) or variance.args[0] is not squares:
        return None
    of_mean = variance.args[1]
    if not is_call(of_mean, MUL) or of_mean.args != (mean, mean):
        return None
    if (root := _root(variance)) is not None:
        return "std", root
    return "var", variance


def is_square(node: Call) -> bool:
    """Whether a node is a square that one other node reads, as a variance reads that of a mean."""
    return is_call(node, MUL) and node.args[0] is node.args[1] and used_once(node)


def _root(variance: Call) -> Call | None:
    if not used_once(variance):
        return None
    clamped = next(iter(variance.users))
    least = clamped.kwargs.get("min", clamped.args[1] if len(clamped.args) > 1 else None)
    if not is_method(clamped, "clamp") or least != LEAST_VARIANCE or not used_once(clamped):
        return None
    if set(clamped.kwargs) - {"min"} or len(clamped.args) > 2:
        return None
    root = next(iter(clamped.users))
    if not is_method(root, "sqrt") or len(root.users) != 2:
        return None
    small, filled = sorted(root.users, key=lambda user: is_method(user, "masked_fill"))
    ok = is_method(filled, "masked_fill") and filled.args == (root, small, 0.0)
    ok = ok and is_call(small, operator.le, torch.le) and used_once(small)
    return filled if ok and small.args == (root, math.sqrt(LEAST_VARIANCE)) else None
