"""Sums gradients inside operators: later users of a tensor read it through its first user.

Autograd sums the gradients of a tensor that is read twice, with a separate operation each time. An
operator that hands on its operand starts its own sums from the gradient of the later users. Sums
that read one small edge table by one code hand on one gradient per edge instead on CUDA, which is
summed per table entry once; on a CPU both are the same loop.

A node that reaches no output hands nothing on: the gradient of later users would return to its
other operands as zeros, which an optimizer treats as a gradient (and applies weight decay for).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.fx import Node

from staticgraph.kernels.batch_norm import batch_norm_handed_on
from staticgraph.kernels.linear import linear_handed_on
from staticgraph.kernels.neighbour_sum import each_edge, neighbour_sum, neighbour_sum_handed_on
from staticgraph.kernels.neighbours import neighbours_of
from staticgraph.kernels.neighbours.program import program_of
from staticgraph.rewrites.captured_graph.canonical_ops import (
    Call,
    is_call,
    is_fenced,
    is_float,
    is_method,
    tensor,
    value,
)
from staticgraph.rewrites.captured_graph.captured import Captured, RewriteTarget, same_dtype
from staticgraph.rewrites.layers.batch_norm import joined, running_of
from staticgraph.rewrites.layers.linear import autocast, product


def product_handed_on(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor]:
    """:func:`staticgraph.rewrites.layers.linear.product`, and ``x`` for later users."""
    return linear_handed_on(x, weight, bias, relu=relu, dtype=autocast(x))


def joined_handed_on(
    x: Tensor,
    addend: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    tracked: Tensor | None,
    momentum: float | None,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    """:func:`staticgraph.rewrites.layers.batch_norm.joined`, and the addend for later users."""
    running = running_of(mean, var, tracked, momentum)
    given: Any = {"residual": residual, "running": running}
    return batch_norm_handed_on(x, addend, weight, bias, count, eps=eps, relu=relu, **given)


# For each operator: the one that hands on, and the places of the operand and of what is handed on.
_HANDING: dict[Any, tuple[Any, int, int]] = {
    product: (product_handed_on, 0, 1),
    joined: (joined_handed_on, 1, 1),
}


def rewrite(captured: Captured) -> None:
    """Rewrites every operator that can hand an operand on to a later user."""
    order = {node: place for place, node in enumerate(captured.graph.nodes)}
    read = _reaching_an_output(captured)
    tables = _Tables(captured, order, read)
    for node in list(captured.graph.nodes):
        if node in read and is_call(node, neighbour_sum):
            _sum(captured, node, order, tables)
        elif node in read and is_call(node, neighbours_of):
            _program(captured, node, order)
        elif node in read and is_call(node, *_HANDING):
            _hand_on(captured, node, order)


def _reaching_an_output(captured: Captured) -> set[Call]:
    """The nodes that a gradient of the graph's outputs can reach."""
    found: set[Call] = set()
    for node in reversed(list(captured.graph.nodes)):
        if node.op == "output" or (
            _differentiable(node)
            and not is_method(node, "detach")
            and any(user in found for user in node.users)
        ):
            found.add(node)
    return found


def _later(node: Call, operand: Call, order: dict[Call, int]) -> list[Call]:
    """The users of an operand after a node."""
    found = tensor(operand)
    if operand.op in ("placeholder", "get_attr") or found is None or not found.requires_grad:
        return []
    if is_fenced(operand) or operand.meta.get("written"):
        return []
    return [
        user
        for user in operand.users
        if user is not node and order.get(user, -1) > order[node] and _differentiable(user)
    ]


def _differentiable(user: Call) -> bool:
    """Whether a gradient can come from a user at all; if none can, handing on to it would bring
    zeros."""
    found = tensor(user)
    return user.op != "output" and (found is None or found.is_floating_point())


def edge_by_edge(target: RewriteTarget) -> bool:
    """Whether gradients of a shared table are better summed per edge, and per entry only once."""
    return target.device != "cpu"


class _Tables:
    """Small edge tables that several sums read by one code, on CUDA."""

    def __init__(self, captured: Captured, order: dict[Call, int], read: set[Call]) -> None:
        self._captured = captured
        sums = [node for node in captured.graph.nodes if is_call(node, neighbour_sum)]
        sums = [node for node in sums if node in read]
        # Sums that hand on their nodes anyway: nodes that nothing reads again would bring zeros.
        ready = [node for node in sums if self._key(node) and _later(node, node.args[0], order)]
        coded = Counter(self._key(node) for node in sums if self._key(node))
        self._left = Counter(map(self._key, ready)) if edge_by_edge(captured.target) else Counter()
        for key in list(self._left):
            if self._left[key] < max(2, coded[key]):
                del self._left[key]
        self._each: dict[Any, Call] = {}

    def _key(self, node: Call) -> tuple[Any, Any] | None:
        edge, code = node.args[1], node.kwargs.get("code")
        if code is None or node.kwargs.get("transform") != "relu_add":
            return None
        return (edge, code) if _floating(edge) else None

    def sum(self, node: Call) -> Call | None:
        """A sum with one gradient per edge, which also returns its nodes for later users; or
        None."""
        key = self._key(node)
        if not self._left[key]:
            return None
        assert key is not None
        edge, code = key
        if key not in self._each:
            self._each[key] = self._captured.before(node, each_edge, edge, code, like=edge)
        self._left[key] -= 1
        more = self._left[key] > 0
        made = self._captured.before(
            node,
            neighbour_sum_handed_on,
            *node.args,
            edge_too=more,
            each=self._each[key],
            **node.kwargs,
        )
        if more:
            self._each[key] = self._captured.item(node, made, 2, edge)
        return made


def _floating(operand: Any) -> bool:
    return isinstance(operand, Node) and is_float(operand)


def _sum(captured: Captured, node: Call, order: dict[Call, int], tables: _Tables) -> None:
    x, edge, _ = node.args
    later_x = _later(node, x, order)
    later_edge = [] if edge is None else _later(node, edge, order)
    if (not later_x and not later_edge) or x is edge:
        return
    summed = tables.sum(node)
    if summed is not None:
        later_edge = []
    else:
        options = {"edge_too": bool(later_edge), **node.kwargs}
        summed = captured.before(node, neighbour_sum_handed_on, *node.args, **options)
    _read_through(captured, node, summed, order, [(1, x, later_x), (2, edge, later_edge)])


def _program(captured: Captured, node: Call, order: dict[Call, int]) -> None:
    """Hands on the rows of edges that a program reads."""
    key, operands, codes, edges = node.args
    program = program_of(key)
    handed: list[tuple[int, Call, list[Call]]] = []
    for number, (rows, operand) in enumerate(zip(operands, program.operands, strict=True)):
        later = _later(node, rows, order) if operand.place == "edge" else []
        if later and operands.count(rows) == 1:
            handed.append((number, rows, later))
    if handed:
        numbers = [number for number, _, _ in handed]
        call = captured.before(node, neighbours_of, key, operands, codes, edges, numbers)
        first = len(program.results)
        places = [(first + at, rows, later) for at, (_, rows, later) in enumerate(handed)]
        _read_through(captured, node, call, order, places)


def _hand_on(captured: Captured, node: Call, order: dict[Call, int]) -> None:
    function, at, place = _HANDING[node.target]
    operand = node.args[at]
    later = [] if operand is None else _later(node, operand, order)
    if later and _adds_inside(captured, node):
        call = captured.before(node, function, *node.args, **node.kwargs)
        _read_through(captured, node, call, order, [(place, operand, later)])


def _adds_inside(captured: Captured, node: Call) -> bool:
    """Whether the gradients of an operand's users are of one dtype, and the operand of one use."""
    if is_call(node, product) and captured.target.device == "cpu":
        return same_dtype(*node.args[:2], node)
    if is_call(node, joined):
        x, addend, residual = node.args[:3]
        return addend is not residual and same_dtype(x, addend, residual, node)
    return True


def _read_through(
    captured: Captured, node: Call, call: Call, order: dict[Call, int], handed: Any
) -> None:
    """Replaces a node; ``handed`` are the places, operands and later users of what it hands on."""
    out = call if isinstance(value(node), tuple) else captured.item(node, call, 0, node)
    order[call] = order[out] = order[node]
    for place, operand, later in handed:
        if later:
            part = captured.item(node, call, place, operand)
            order[part] = order[node]
            for user in later:
                user.replace_input_with(operand, part)
    captured.replace(node, out)
