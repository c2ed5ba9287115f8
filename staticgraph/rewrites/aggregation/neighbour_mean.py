"""Rewrites a sum over neighbours divided by their count to the canonical form of a mean.

PyG's fused aggregations count once and divide every sum by the count, ``clamp``ed to at least one;
users who write out a mean do the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from staticgraph.rewrites.aggregation.segments import counts
from staticgraph.rewrites.captured_graph.canonical_ops import (
    DIV,
    SCATTER,
    Call,
    is_call,
    is_method,
    shape,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured
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
