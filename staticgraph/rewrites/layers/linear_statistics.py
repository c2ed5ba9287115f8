"""Computes the statistics of a BatchNorm in the linear layer right before it, on CUDA.

A norm of more than :data:`ONE_LAUNCH_ROWS` rows begins with a launch that reads what the product
before it has just written. Under autocast that product is this library's own, and can compute the
statistics while it holds the rows. Other users of the product are unaffected. The operands are
calls inserted by :mod:`staticgraph.rewrites.layers.batch_norm` and
:mod:`staticgraph.rewrites.layers.linear`, which have checked for a derivative in the forward.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm.op import ONE_LAUNCH_ROWS
from staticgraph.kernels.batch_norm.partials import MAX_PARTIALS, MAX_ROWS
from staticgraph.kernels.linear.op import by_library
from staticgraph.kernels.linear_statistics import linear_statistics
from staticgraph.rewrites.captured_graph.canonical_ops import SELECT, Call, is_call, shape, tensor
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.layers.batch_norm import joined
from staticgraph.rewrites.layers.linear import autocast, product


def saves(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether statistics save a launch for a norm after ``x @ weight.T`` in ``dtype``.

    That is so if the norm starts with a launch of its own and the product is this library's, whose
    epilogue can sum over rows. Reads no data.
    """
    return x.size(0) > ONE_LAUNCH_ROWS and not by_library(x, weight, dtype)


NAME = "linear_statistics"


def measured(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, count: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`staticgraph.rewrites.layers.linear.product`, and its statistics over ``count``
    rows."""
    return linear_statistics(x, weight, bias, count, relu=relu, dtype=autocast(x))


def rewrite(captured: Captured) -> None:
    """Rewrites every norm that gains from it."""
    if captured.target.device == "cpu":
        return
    order = {node: place for place, node in enumerate(captured.graph.nodes)}
    for node in list(captured.graph.nodes):
        if not is_call(node, joined):
            continue
        given = next((one for one in node.args[:2] if is_call(one, product)), None)
        if given is None or not _saves(given):
            continue
        if (reason := _obstacle(node, order)) is None:
            _at(captured, node, order)
        else:
            captured.miss(NAME, node, reason)


def _saves(node: Call) -> bool:
    x, weight, out = (tensor(one) for one in (*node.args[:2], node))
    assert x is not None
    assert weight is not None
    assert out is not None
    return saves(x, weight, out.dtype)


def _obstacle(node: Call, order: dict[Call, int]) -> str | None:
    x, addend, _, _, _, count, _, _, tracked, momentum, *_ = node.args
    rows = (shape(x) or (0,))[0]
    if addend is not None:
        return "it is a sum that is normalised, not the linear layer alone"
    if tracked is not None and momentum is None:
        return "a cumulative mean divides by a count that the norm's own first launch moves"
    if rows > MAX_ROWS:
        return f"{rows} rows have more tiles than the {MAX_PARTIALS} chunks that a norm joins"
    if order[count] > order[x] and not _moves(count, order[x], order):
        return "its rows are counted after the linear layer"
    return None


def _moves(count: Call, before: int, order: dict[Call, int]) -> bool:
    """Whether the count only selects from earlier nodes, so that it can be moved before."""
    taken = is_call(count, SELECT, operator.getitem)
    return taken and all(order[one] < before for one in count.all_input_nodes)


def _at(captured: Captured, node: Call, order: dict[Call, int]) -> None:
    given, count = node.args[0], node.args[5]
    if order[count] > order[given]:
        given.prepend(count)
        order[count] = order[given]
    made = captured.before(given, measured, *given.args, count)
    parts = [captured.item(given, made, place, given) for place in (0, 1)]
    if captured.replace(given, parts[0]):
        captured.replace(node, captured.before(node, joined, *node.args, parts[1]), NAME)
