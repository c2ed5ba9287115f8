"""Gradients handed on: what reads a tensor again reads it through the operator that read it first.

Autograd adds up the gradients of a tensor that is read twice, an operation each time. An operator
that hands its operand on takes the later readers' gradient where its own sums begin.
"""

from __future__ import annotations

from torch import Tensor

from staticgraph.kernels.linear import linear_handed_on
from staticgraph.kernels.neighbour_sum import neighbour_sum, neighbour_sum_handed_on
from staticgraph.rewrites.captured import Captured
from staticgraph.rewrites.linear import product
from staticgraph.rewrites.words import Call, dtype, is_call, is_float, tensor

NAME = "handing_on"


def product_handed_on(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor]:
    """:func:`staticgraph.rewrites.linear.product`, and ``x`` to be read from now on."""
    return linear_handed_on(x, weight, bias, relu=relu)


def rewrite(captured: Captured) -> None:
    """Every operator that can hand an operand on to a later reader."""
    order = {node: place for place, node in enumerate(captured.graph.nodes)}
    for node in list(captured.graph.nodes):
        if is_call(node, neighbour_sum):
            _sum(captured, node, order)
        elif is_call(node, product):
            _product(captured, node, order)


def _later(node: Call, operand: Call, order: dict[Call, int]) -> list[Call]:
    """Who reads an operand after a node does."""
    if operand.op in ("placeholder", "get_attr") or not is_float(operand):
        return []
    return [
        user
        for user in operand.users
        if user is not node and order.get(user, -1) > order[node] and _differentiable(user)
    ]


def _differentiable(user: Call) -> bool:
    """Whether a gradient can come back from a reader at all: one that none comes from would bring
    zeros."""
    found = tensor(user)
    return user.op != "output" and (found is None or found.is_floating_point())


def _sum(captured: Captured, node: Call, order: dict[Call, int]) -> None:
    x, edge, *where = node.args
    later_x = _later(node, x, order)
    later_edge = [] if edge is None else _later(node, edge, order)
    if (not later_x and not later_edge) or x is edge:
        return
    made = captured.before(
        node, neighbour_sum_handed_on, x, edge, *where, edge_too=bool(later_edge), **node.kwargs
    )
    parts = [captured.item(node, made, place, like) for place, like in ((0, node), (1, x))]
    for user in later_x:
        user.replace_input_with(x, parts[1])
    if later_edge:
        handed = captured.item(node, made, 2, edge)
        for user in later_edge:
            user.replace_input_with(edge, handed)
    _moved(order, node, (made, *parts))
    captured.replace(node, parts[0])


def _product(captured: Captured, node: Call, order: dict[Call, int]) -> None:
    x, weight, bias, relu = node.args
    later = _later(node, x, order)
    if not later or not dtype(x) == dtype(weight) == dtype(node):
        return
    made = captured.before(node, product_handed_on, x, weight, bias, relu)
    parts = [captured.item(node, made, place, like) for place, like in ((0, node), (1, x))]
    for user in later:
        user.replace_input_with(x, parts[1])
    _moved(order, node, (made, *parts))
    captured.replace(node, parts[0])


def _moved(order: dict[Call, int], node: Call, made: tuple[Call, ...]) -> None:
    for new in made:
        order[new] = order[node]
