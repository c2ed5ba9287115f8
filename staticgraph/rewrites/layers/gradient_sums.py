"""Sums gradients inside operators: later users of a tensor read it through its first user.

Autograd sums the gradients of a tensor that is read twice, with a separate operation each time. An
operator that hands on its operand starts its own sums from the gradient of the later users.

A node that reaches no output hands nothing on: the gradient of later users would return to its
other operands as zeros, which an optimizer treats as a gradient (and applies weight decay for).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from staticgraph.kernels.linear import linear_handed_on
from staticgraph.kernels.neighbours import neighbours_of
from staticgraph.kernels.neighbours.program import program_of
from staticgraph.rewrites.captured_graph.canonical_ops import (
    Call,
    is_call,
    is_fenced,
    is_method,
    tensor,
    value,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype
from staticgraph.rewrites.captured_graph.user_code import differentiates
from staticgraph.rewrites.layers.linear import autocast, product


def product_handed_on(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor]:
    """:func:`staticgraph.rewrites.layers.linear.product`, and ``x`` for later users."""
    out, same = linear_handed_on(x.flatten(0, -2), weight, bias, relu=relu, dtype=autocast(x))
    if x.dim() == 2:
        return out, same
    return out.unflatten(0, x.shape[:-1]), same.view_as(x)


def rewrite(captured: Captured) -> None:
    """Rewrites every operator that can hand an operand on to a later user."""
    order = {node: place for place, node in enumerate(captured.graph.nodes)}
    read = _reaching_an_output(captured)
    twice = any(map(differentiates, captured.graph.nodes))
    for node in list(captured.graph.nodes):
        if node in read and is_call(node, neighbours_of):
            _program(captured, node, order, twice)
        elif node in read and is_call(node, product):
            _hand_on(captured, node, order)


def _reaching_an_output(captured: Captured) -> set[Call]:
    """The nodes that a gradient of the graph's outputs can reach."""
    reached: set[Call] = set()
    for node in reversed(list(captured.graph.nodes)):
        if node.op == "output" or (
            _differentiable(node)
            and not is_method(node, "detach")
            and any(user in reached for user in node.users)
        ):
            reached.add(node)
    return reached


def _later(node: Call, operand: Call, order: dict[Call, int]) -> list[Call]:
    """The users of an operand after a node; none if something is differentiated by it, or a hook
    reads its gradient, since that of what is handed on leaves out the node's."""
    fake = tensor(operand)
    if operand.op in ("placeholder", "get_attr") or fake is None or not fake.requires_grad:
        return []
    if is_fenced(operand) or operand.meta.get("written"):
        return []
    if any(differentiates(user) or "register_hook" in str(user.target) for user in operand.users):
        return []
    return [
        user
        for user in operand.users
        if user is not node and order.get(user, -1) > order[node] and _differentiable(user)
    ]


def _differentiable(user: Call) -> bool:
    """Whether a gradient can come from a user at all; if none can, handing on to it would bring
    zeros."""
    fake = tensor(user)
    return user.op != "output" and (fake is None or fake.is_floating_point())


def _program(captured: Captured, node: Call, order: dict[Call, int], twice: bool) -> None:
    """Hands on the rows that a program reads, to its derivative alone if nothing else reads them
    and the graph holds a derivative."""
    key, operands, codes, edges = node.args
    program = program_of(key)
    handed: list[tuple[int, Call, list[Call]]] = []
    for number, (rows, operand) in enumerate(zip(operands, program.operands, strict=True)):
        ours = operand.place in ("source", "target", "edge")
        later = _later(node, rows, order) if ours else []
        if (later or (twice and ours)) and operands.index(rows) == number:
            handed.append((number, rows, later))
    if handed:
        numbers = [number for number, _, _ in handed]
        call = captured.before(node, neighbours_of, key, operands, codes, edges, numbers)
        first = len(program.results)
        places = [
            (first + position, rows, later) for position, (_, rows, later) in enumerate(handed)
        ]
        _read_through(captured, node, call, order, places)


def _hand_on(captured: Captured, node: Call, order: dict[Call, int]) -> None:
    """Hands on the rows that a layer reads; on a CPU, if its gradients are of one dtype."""
    rows, weight, *_ = node.args
    later = _later(node, rows, order)
    if later and (captured.target.device != "cpu" or same_dtype(rows, weight, node)):
        call = captured.before(node, product_handed_on, *node.args)
        _read_through(captured, node, call, order, [(1, rows, later)])


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
