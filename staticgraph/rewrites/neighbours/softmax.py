"""Reads softmax over a node's edges, and sums that it weighs, as attention among neighbours does.

PyG's softmax is a maximum, a difference, an exponential, a sum and a quotient. A sum that it
weighs needs none of them as rows: it becomes :func:`weighed_sum`. Any other softmax becomes the
exponential of the weights less :func:`log_sum`, which is computed row by row. Where a layer adds
self-loops, both have a term of the node itself, and the weights of self-loops that were there are
minus infinity (:func:`without_loops`). These functions are PyG's own operations, which run where no
program replaces them.

Dropped attention weights are weights times a dropout of ones, which multiplies the weighed rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import scatter, softmax

from staticgraph.nn.functions import softmaxed
from staticgraph.rewrites.captured_graph.canonical_ops import (
    DROPOUT,
    GATHER,
    MUL,
    SCATTER,
    SUB,
    Call,
    is_call,
    is_float,
    shape,
    sides,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.neighbours import added_loops
from staticgraph.rewrites.neighbours.added_loops import Loops
from staticgraph.rewrites.passes.eliminate import drop_unread

NAME = "softmax"


def weighed_sum(
    rows: Tensor,
    weights: Tensor,
    index: Tensor,
    groups: int,
    own_rows: Tensor | None = None,
    own_weights: Tensor | None = None,
) -> Tensor:
    """``[E, H, C]``, ``[E, H]`` -> ``[N, H, C]``: the sum by index of rows times the softmax by
    index of their weights; ``own_rows`` and ``own_weights`` are one more row per group."""
    if own_rows is not None and own_weights is not None:
        index = torch.cat([index, torch.arange(groups, device=index.device)])
        rows, weights = torch.cat([rows, own_rows]), torch.cat([weights, own_weights])
    share = softmax(weights, index, num_nodes=groups)
    share = share.reshape(*share.shape, *(1,) * (rows.dim() - share.dim()))
    return scatter(rows * share, index, 0, groups, "sum")


def log_sum(weights: Tensor, index: Tensor, groups: int) -> Tensor:
    """``[E, ...]`` -> ``[N, ...]``: the logarithm of the sum by index of exponentials."""
    best = scatter(weights.detach(), index, 0, groups, "max")
    power = (weights - best.index_select(0, index)).exp()
    total = scatter(power, index, 0, groups, "sum")
    return best + total.masked_fill(total == 0, 1).log()


def without_loops(weights: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """``[E, ...]`` with minus infinity for edges from a node to itself."""
    loop = (src == dst).view(-1, *(1,) * (weights.dim() - 1))
    return weights.masked_fill(loop, -torch.inf)


def rewrite(captured: Captured) -> None:
    """Rewrites every softmax over the edges into a node, with or without added self-loops."""
    if not captured.has_edges:
        return
    parts: dict[Any, Any] = {}
    for node in captured.calls(SCATTER):
        _weighed(captured, node, parts)
    drop_unread(captured.graph)
    for node in captured.calls(softmaxed):
        weights, index, groups, dim = node.args
        ours = captured.index(index) == "dst" and groups == captured.nodes and dim == 0
        if ours and is_float(node):
            whole = captured.before(node, log_sum, weights, index, groups)
            each = captured.before(node, GATHER, whole, 0, index)
            less = captured.before(node, SUB, weights, each)
            captured.replace(node, captured.before(node, torch.exp, less), NAME)


def _weighed(captured: Captured, node: Call, parts: dict[Any, Any]) -> None:
    """Rewrites a sum by destination of rows times the softmax by destination of weights."""
    message, index, dim, groups, reduce = node.args
    if dim != 0 or groups != captured.nodes or reduce not in ("sum", "add") or not is_float(node):
        return
    loops = None
    if captured.index(index) != "dst":
        end = added_loops.end_of(captured, index)
        if end is None or end[1] != 1:
            return
        loops = end[0]
    message = under_shape(message)
    if not is_call(message, MUL) or (shape(message) or ())[:1] != (shape(node.args[0]) or ())[:1]:
        return
    for rows, second in sides(message):
        shares, dropped = under_shape(second), None
        if is_call(shares, DROPOUT):
            shares, dropped = under_shape(shares.args[0]), shares
        if not is_call(shares, softmaxed) or shape(rows) != shape(message):
            continue
        alone = _is_read_alone(second, shares if dropped is None else dropped)
        if not used_once(shares) or not alone or not _is_over(captured, shares, index, loops):
            return
        weights = _leading(captured, node, shares.args[0], rows, second)
        if weights is None:
            return
        draws = []
        if dropped is not None:
            ones = captured.before(dropped, torch.ones_like, dropped.args[0])
            mask = captured.before(dropped, DROPOUT, ones, *dropped.args[1:])
            draws = [dropped, mask]
            mask = captured.reshaped(node, mask, *(shape(second) or ()))
            rows = captured.before(node, MUL, rows, mask)
        _put(captured, node, rows, weights, loops, parts)
        drop_unread(captured.graph)
        for draw in draws:
            if not draw.users:  # one of them: each would draw numbers
                captured.graph.erase_node(draw)
        return


def _is_read_alone(node: Any, below: Call) -> bool:
    """Whether one node alone reads another, through views that nothing else reads: numbers that a
    dropout draws must not be drawn twice."""
    while used_once(node) and node is not below:
        node = node.args[0]
    return used_once(node)


def _is_over(captured: Captured, shares: Call, index: Any, loops: Loops | None) -> bool:
    """Whether a softmax is over the same edges as a sum."""
    _, other, groups, dim = shares.args
    if dim != 0 or groups != captured.nodes:
        return False
    if loops is None:
        return captured.index(other) == "dst"
    end = added_loops.end_of(captured, other)
    return end is not None and end[1] == 1 and end[0].added is loops.added


def _leading(captured: Captured, node: Call, weights: Any, rows: Any, shares: Any) -> Any:
    """Weights in the shape that rows have without some of their last dimensions, of which the
    shares have one number each; None if they have another."""
    sizes, whole, weight_sizes = shape(shares), shape(rows), shape(weights)
    if sizes is None or whole is None or weight_sizes is None or len(sizes) != len(whole):
        return None
    rank = len(sizes)
    while rank > 1 and sizes[rank - 1] == 1:
        rank -= 1
    return captured.reshaped(node, weights, *sizes[:rank]) if sizes[:rank] == whole[:rank] else None


def _put(
    captured: Captured, node: Call, rows: Any, weights: Any, loops: Loops | None, parts: Any
) -> None:
    end, groups, own_terms = captured.end(1), captured.nodes, (None, None)
    if loops is not None:
        try:
            (rows, own_rows), (weights, own_weights) = (
                added_loops.split(captured, operand, loops, parts) for operand in (rows, weights)
            )
        except added_loops.Unknown as unknown:
            captured.miss(NAME, node, str(unknown), unknown.node)
            return
        own_terms = own_rows, own_weights
        if loops.skips:
            ends = captured.end(0), end
            weights = captured.before(node, without_loops, weights, *ends)
    new = captured.before(node, weighed_sum, rows, weights, end, groups, *own_terms)
    captured.replace(node, captured.reshaped(node, new, *(shape(node) or ())), NAME)
