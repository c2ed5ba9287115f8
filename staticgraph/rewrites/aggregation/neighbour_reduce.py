"""Rewrites several reductions of one message, or one with an activation, to a single operator.

Examples are the sum of ``silu(x[src] + e)``, or mean, min, max and standard deviation of the
messages of PNA. The message is read by :mod:`staticgraph.rewrites.messages.edge_terms`, including
linear layers of concatenations; a standard deviation is recognised as PyG's aggregations write it,
from two means. Messages that :mod:`staticgraph.rewrites.aggregation.neighbour_sum` handles alone
are left to it. For any other message :mod:`staticgraph.rewrites.messages.edge_rows` gathers the
rows of both ends.

This runs on a CPU only: the library has no CUDA kernel for it; there each reduction uses the row
pointers, and a compiler fuses the operations before it.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from staticgraph.kernels.neighbour_reduce import neighbour_reduce
from staticgraph.rewrites.aggregation.neighbour_sum import Message, message
from staticgraph.rewrites.aggregation.segments import counts
from staticgraph.rewrites.captured_graph.canonical_ops import (
    DIV,
    LEAKY_RELU,
    MUL,
    RELU,
    SCATTER,
    SILU,
    SUB,
    Call,
    is_call,
    is_method,
    shape,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype
from staticgraph.rewrites.messages.edge_operands import Operands, operands
from staticgraph.rewrites.messages.edge_terms import is_cat, stacked
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
        return counted.args[0] is captured.facts["row_ptr"] and clamped.target == "clamp"
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


NAME = "neighbour_reduce"
LEAST_VARIANCE = 1e-5
_ACTIVATIONS = {RELU: "relu", LEAKY_RELU: "leaky_relu", SILU: "silu", torch.sigmoid: "sigmoid"}
_REDUCTIONS = {"sum": "sum", "add": "sum", "mean": "mean", "min": "min", "max": "max"}


class Reduced(NamedTuple):
    """The name of a reduction, and the node of its result."""

    name: str
    node: Call


def rewrite(captured: Captured) -> None:
    """Rewrites every message that is reduced by the batch's own destinations."""
    if not captured.facts or captured.target.device != "cpu":
        return
    means(captured)
    for node in captured.calls(SCATTER):
        if captured.by_destination(node, *_REDUCTIONS):
            _at(captured, node.args[0])


def _at(captured: Captured, rows: Any) -> None:
    found = shape(rows)
    if found is None or len(found) not in (2, 3) or found[0] != captured.edges:
        return
    reduced = _reductions(captured, rows)
    if reduced is None:
        for user in rows.users:
            if captured.by_destination(user, *_REDUCTIONS) and user.args[4] == "min":
                captured.miss(NAME, user, "the message is read by more than reductions", rows)
        return
    single = len(reduced) == 1 and reduced[0].name != "min"
    if single and isinstance(message(captured, rows), Message):
        return
    below, activation, slope = _under(rows)
    towers = stacked(captured, below)
    anchor = min((one.node for one in reduced), key=_order(captured).__getitem__)
    if any(terms.split for terms in towers):
        given = operands(captured, anchor, towers)
    elif single:
        return
    else:
        flat, activation, slope = rows, "none", 0.01
        if len(found) == 3:
            flat = captured.before(anchor, torch.reshape, rows, (found[0], -1))
        given = Operands(None, None, flat, None)
    if not same_dtype(given.source, given.target, given.edge, rows):
        return
    _put(captured, anchor, given, reduced, (activation, slope), found)


def _order(captured: Captured) -> dict[Call, int]:
    return {node: place for place, node in enumerate(captured.graph.nodes)}


def _under(rows: Call) -> tuple[Any, str, float]:
    """The operand of an activation, the activation's name and its slope."""
    name = _ACTIVATIONS.get(rows.target) if rows.op == "call_function" else None
    if is_method(rows, "sigmoid"):
        name = "sigmoid"
    if name is None or not used_once(rows.args[0]) or rows.kwargs or len(rows.args) > 2:
        return rows, "none", 0.01
    slope = rows.args[1] if name == "leaky_relu" else 0.01
    return rows.args[0], name, slope


def _reductions(captured: Captured, rows: Call) -> list[Reduced] | None:
    """All users of a message, if they are reductions only, one of each kind; else None."""
    found: dict[str, Call] = {}
    squares: list[Call] = []
    for user in rows.users:
        if captured.by_destination(user, *_REDUCTIONS) and user.args[0] is rows:
            name = _REDUCTIONS[user.args[4]]
            if name in found:
                return None
            found[name] = user
        elif is_call(user, MUL) and user.args == (rows, rows) and used_once(user):
            squares.append(user)
        else:
            return None
    for square in squares:
        spread = _spread(captured, square, found.get("mean"))
        if spread is None:
            return None
        found[spread.name] = spread.node
    mean = found.get("mean")
    if mean is not None and squares and all(_squares(user) for user in mean.users):
        del found["mean"]  # needed only for the variance
    return [Reduced(name, node) for name, node in found.items()]


def _squares(user: Call) -> bool:
    """Whether a user only squares a mean, for a variance."""
    return is_call(user, MUL) and user.args[0] is user.args[1] and used_once(user)


def _spread(captured: Captured, square: Call, mean: Call | None) -> Reduced | None:
    """``mean(x * x) - mean(x) ** 2`` and, if it follows, its root in PyG's form; else None."""
    second = next(iter(square.users))
    if mean is None or not captured.by_destination(second, "mean"):
        return None
    if not used_once(second):
        return None
    variance = next(iter(second.users))
    if not is_call(variance, SUB) or variance.args[0] is not second:
        return None
    of_mean = variance.args[1]
    if not is_call(of_mean, MUL) or of_mean.args != (mean, mean):
        return None
    if (root := _root(variance)) is not None:
        return Reduced("std", root)
    return Reduced("var", variance)


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


def _put(
    captured: Captured,
    anchor: Call,
    given: Operands,
    reduced: list[Reduced],
    activation: tuple[str, float],
    found: tuple[int, ...],
) -> None:
    together = _together(reduced)
    if together is not None:
        place = {node: at for at, node in enumerate(together.args[0])}
        reduced = sorted(reduced, key=lambda one: place[one.node])
    towers = found[1] if len(found) == 3 else 1
    width = found[-1]
    names = [one.name for one in reduced]
    operator_given = (given.source, given.target, given.edge, captured.batch_edges)
    options: dict[str, Any] = {"reductions": names, "towers": towers}
    if activation[0] != "none":
        options |= {"activation": activation[0], "slope": activation[1]}
    if given.code is not None:
        options["code"] = given.code
    out = captured.before(anchor, neighbour_reduce, *operator_given, **options)
    nodes = captured.nodes
    if towers == 1:
        rows = captured.before(anchor, torch.Tensor.view, out, nodes, len(names) * width)
        if len(found) == 3:
            rows = captured.before(anchor, torch.Tensor.view, rows, nodes, 1, len(names) * width)
    else:
        rows = captured.before(anchor, torch.transpose, out, 0, 1)
    parts = []
    for at, one in enumerate(reduced):
        part, any_strides = rows, _any_strides(one.node, together)
        if len(reduced) > 1:
            part = captured.before(anchor, torch.narrow, rows, -1, at * width, width)
        if (towers > 1 or len(reduced) > 1) and not any_strides:
            part = captured.before(anchor, torch.Tensor.contiguous, part)
        parts.append((one.node, part, any_strides))
    replaced = [captured.replace(old, new, NAME, any_strides=free) for old, new, free in parts]
    if together is not None and all(replaced):
        any_strides = _any_strides(together, None)
        if towers > 1 and not any_strides:
            rows = captured.before(together, torch.Tensor.contiguous, rows)
        captured.replace(together, rows, any_strides=any_strides)


def _any_strides(node: Call, besides: Call | None) -> bool:
    """Whether every user copies a node's result, directly or after a product, so that its strides
    do not matter; a view might not be possible with any strides."""
    readers = [user for user in node.users if user is not besides]
    return all(
        is_cat(user) or (is_call(user, MUL) and all(is_cat(after) for after in user.users))
        for user in readers
    )


def _together(reduced: list[Reduced]) -> Call | None:
    """The concatenation of exactly these reductions, or None."""
    nodes = {one.node for one in reduced}
    for user in reduced[0].node.users:
        if is_cat(user) and len(user.args[0]) == len(nodes) and set(user.args[0]) == nodes:
            return user
    return None
