"""Rewrites self-loops that a layer adds after the batch's own edges to terms of the nodes.

An example is the layer of PyG's own tutorial: ``add_self_loops``, a degree, a norm, a weighted sum
over edges and self-loops together. The pointers of edges sorted by destination do not fit such an
index. But the message along a self-loop depends on the node's own rows, so a sum over both is a sum
over the batch's edges, which all other rewrites know, plus the same message with ``x`` for
``x[src]`` and ``x[dst]``.

A message is split if every part of it computes rows from rows: gathers by the two ends, the
attributes that the self-loops were added to, linear layers, and what programs know
(:mod:`staticgraph.rewrites.neighbours.row_operations`). Nothing else is allowed: a norm over all
messages mixes their rows. Invariant: the rows after the self-loops in the trace, spare edges of the
last node, change that node alone, which is padding.

Not supported: the maximum of messages (a node without edges has none, and zero may exceed its
self-loop). A softmax is :mod:`staticgraph.rewrites.neighbours.softmax`'s.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from staticgraph.kernels.neighbours import Builder
from staticgraph.nn.utils.self_loops import loops_added, loops_remaining, loops_removed
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    DROPOUT,
    GATHER,
    LINEAR,
    MUL,
    SCATTER,
    SELECT,
    Call,
    dtype,
    is_call,
    is_fenced,
    is_float,
    is_method,
    shape,
    target_name,
    tensor,
    under_shape,
)
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.neighbours.row_operations import NotByRow, leaf, row_calls, write
from staticgraph.rewrites.neighbours.score_products import by_folded

NAME = "added_loops"
_ONES = (torch.ones, torch.ones_like)
_VIEWS = ("view", "reshape", "unsqueeze")


class Loops(NamedTuple):
    """Edges with self-loops after them.

    Attributes:
        added: the call of ``add_self_loops``.
        rows: the number of rows of a tensor over all of them.
        first: the row at which the self-loops begin.
        skips: whether existing self-loops of the batch are left out.
    """

    added: Call
    rows: int
    first: int
    skips: bool = False


class Unknown(Exception):
    """A part of a message that cannot be split, and why."""

    def __init__(self, node: Call) -> None:
        super().__init__(f"{target_name(node)} of edges and added loops together")
        self.node: Call = node


def rewrite(captured: Captured) -> None:
    """Rewrites every sum over the batch's own edges and one self-loop per node."""
    if not captured.facts:
        return
    parts: dict[tuple[Call, bool], Any] = {}
    for node in captured.calls(SCATTER):
        _, index, dim, groups, _ = node.args
        end = end_of(captured, index)
        if end is not None and dim == 0 and groups == captured.nodes:
            _rewrite_node(captured, node, *end, parts)


def end_of(captured: Captured, index: Any) -> tuple[Loops, int] | None:
    """The edges and self-loops that a vector covers, and which end it names; or None."""
    index = under_shape(index)
    if not is_call(index, SELECT) or index.args[1] != 0 or len(shape(index) or ()) != 1:
        return None
    loops = _loops(captured, index.args[0])
    return None if loops is None else (loops, index.args[2] % 2)


def _loops(captured: Captured, pair: Any) -> Loops | None:
    """``add_self_loops`` of the batch's own edges."""
    if captured.over is not None or not is_call(pair, operator.getitem) or pair.args[1] != 0:
        return None
    added = pair.args[0]
    if not is_call(added, loops_added, loops_remaining):
        return None
    *_, nodes, rows = added.args
    first, base, skips = captured.edges, added.args[0], added.target is loops_remaining
    if is_call(base, operator.getitem) and is_call(base.args[0], loops_removed):
        removed = base.args[0]
        first, base, skips = removed.args[4], removed.args[0], True
    ours = under_shape(base) is captured.facts["edge_index"] and nodes == captured.nodes
    return Loops(added, rows, first, skips) if ours else None


def _rewrite_node(
    captured: Captured, node: Call, loops: Loops, end: int, parts: dict[tuple[Call, bool], Any]
) -> None:
    rows, _, _, groups, reduce = node.args
    if reduce not in ("sum", "add") or not is_float(node):
        captured.miss(NAME, node, f"the {reduce} over edges and added loops")
        return
    try:
        of_edges, of_loops = split(captured, rows, loops, parts)
    except Unknown as unknown:
        captured.miss(NAME, node, str(unknown), unknown.node)
        return
    if loops.skips:
        key, ends = ("no loops", dtype(of_edges)), map(captured.end, (0, 1))
        mask = captured.once(key, _no_loops, *ends, dtype(of_edges))
        narrow = (captured.edges, *(1,) * (len(shape(of_edges) or ()) - 1))
        mask = captured.reshaped(node, mask, *narrow)
        of_edges = captured.before(node, MUL, of_edges, mask)
    summed = captured.before(node, SCATTER, of_edges, captured.end(end), 0, groups, "sum")
    captured.replace(node, captured.before(node, ADD, summed, of_loops), NAME)


def _no_loops(src: Tensor, dst: Tensor, kind: torch.dtype) -> Tensor:
    """``[E]``: one for an edge between two nodes, zero for a self-loop."""
    return (src != dst).to(kind)


def split(
    captured: Captured, node: Any, loops: Loops, parts: dict[tuple[Call, bool], Any]
) -> tuple[Any, Any]:
    """A tensor over edges and self-loops as the part of the batch's own edges, and that of the
    self-loops.

    Raises:
        Unknown: an operation does not compute row by row.
    """
    first, second = (_part(captured, node, loops, for_edges, parts) for for_edges in (True, False))
    return first, second


def _part(
    captured: Captured,
    node: Any,
    loops: Loops,
    for_edges: bool,
    parts: dict[tuple[Call, bool], Any],
) -> Any:
    """The part of a tensor over edges and self-loops that belongs to the batch's own edges
    (``for_edges``), or to the self-loops."""
    if not isinstance(node, Node) or (shape(node) or (0,))[0] != loops.rows:
        return node
    if (node, for_edges) not in parts:
        parts[node, for_edges] = _of_part(captured, node, loops, for_edges, parts)
    return parts[node, for_edges]


def _of_part(captured: Captured, node: Any, loops: Loops, for_edges: bool, parts: Any) -> Any:
    rows = captured.edges if for_edges else captured.nodes

    def part(operand: Any) -> Any:
        """An operand for the edges alone, or for the self-loops alone."""
        return _part(captured, operand, loops, for_edges, parts)

    if is_fenced(node) or node.meta.get("written"):
        raise Unknown(node)
    if is_call(node, GATHER):
        end = end_of(captured, node.args[2])
        if end is None or end[0].added is not loops.added or shape(node.args[0]) is None:
            raise Unknown(node)
        if shape(node.args[0])[0] != captured.nodes:  # pyright: ignore[reportOptionalSubscript]
            raise Unknown(node)
        if not for_edges:
            return node.args[0]
        return _behind(captured, node, GATHER, node.args[0], 0, captured.end(end[1]))
    if is_call(node, operator.getitem) and node.args == (loops.added, 1):
        first = 0 if for_edges else loops.first
        return _behind(captured, node, torch.narrow, node, 0, first, rows)
    fake = tensor(node)
    assert fake is not None
    if is_call(node, DROPOUT) and is_call(node.args[0], torch.ones_like):
        first = 0 if for_edges else loops.first
        return _behind(captured, node, torch.narrow, node, 0, first, rows)
    if (is_method(node, "new_ones") or is_call(node, *_ONES)) and fake.dim() >= 1:
        return _behind(captured, node, torch.ones, (rows, *fake.shape[1:]), **_kind(fake))
    if is_call(node, LINEAR, by_folded):
        return _again(captured, node, (part(node.args[0]), *node.args[1:]), {})
    if is_method(node, *_VIEWS) or is_call(node, torch.unsqueeze, torch.reshape):
        return _view(captured, node, part(node.args[0]), rows, loops)
    if _is_by_row(node, loops):
        return _again(captured, node, *map_arg((node.args, node.kwargs), part))
    raise Unknown(node)


def _is_by_row(node: Call, loops: Loops) -> bool:
    """Whether a node computes every row from that row of its operands."""
    calls = row_calls(node)
    if calls is None or not calls.calls:
        return False
    builder = Builder()
    try:
        places = {
            operand: builder.operand(*leaf(operand, calls, loops.rows, "edge"))
            for operand in calls.operands
        }
        write(builder, calls, loops.rows, places)
    except NotByRow:
        return False
    return True


def _view(captured: Captured, node: Call, operand: Any, rows: int, loops: Loops) -> Call:
    """A view that keeps the leading dimension."""
    before, after = shape(node.args[0]), shape(node)
    if before is None or after is None or before[0] != loops.rows or after[0] != loops.rows:
        raise Unknown(node)
    if is_call(node, torch.unsqueeze) or is_method(node, "unsqueeze"):
        return _again(captured, node, (operand, *node.args[1:]), node.kwargs)
    return _behind(captured, node, torch.reshape, operand, (rows, *after[1:]))


def _again(captured: Captured, node: Call, args: Any, kwargs: Any) -> Call:
    """The same call with other operands."""
    if node.op == "call_method":
        return _behind(captured, node, getattr(torch.Tensor, str(node.target)), *args, **kwargs)
    return _behind(captured, node, node.target, *args, **kwargs)


def _behind(captured: Captured, node: Call, function: Any, *args: Any, **kwargs: Any) -> Call:
    """Inserts a call right after a node; inserted operands come after their own nodes."""
    return captured.before(node.next, function, *args, like=node, **kwargs)


def _kind(fake: Tensor) -> dict[str, Any]:
    return {"dtype": fake.dtype, "device": fake.device}
