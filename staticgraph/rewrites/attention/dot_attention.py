"""Rewrites dot-product attention among neighbours to one operator, dot_attention.

It matches a transformer convolution, PyG's or written by hand. Read upwards from the sum: rows
``v[src]``, possibly plus rows of the edges, times the shares from a softmax by destination of
``q[dst] . k[src]``, which :mod:`staticgraph.rewrites.attention.dot_scores` reads. A single head may
be given in two dimensions.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from staticgraph.kernels.dot_attention import dot_attention
from staticgraph.nn.functions import softmaxed
from staticgraph.rewrites.attention.dot_scores import (
    DotScores,
    KeyRows,
    OddProducts,
    rows_of,
    scores_of,
)
from staticgraph.rewrites.captured_graph.canonical_ops import (
    DROPOUT,
    MUL,
    SCATTER,
    SHAPES,
    Call,
    dtype,
    is_call,
    is_float,
    is_method,
    shape,
    sides,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import TWICE, Captured
from staticgraph.rewrites.messages.edge_terms import is_small

NAME = "dot_attention"


def rewrite(captured: Captured) -> None:
    """Rewrites every sum by the batch's own destinations that is weighted by such a softmax."""
    if not captured.facts:
        return
    for node in captured.calls(SCATTER):
        if captured.index(node.args[1]) == "dst":
            try:
                _at(captured, node)
            except OddProducts as odd:
                captured.miss(NAME, odd.node, str(odd))


def _at(captured: Captured, node: Call) -> None:
    """Rewrites one sum, if it is such an attention.

    Raises:
        OddProducts: the weights are a softmax of such products, but something else prevents it.
    """
    message, _, dim, groups, reduce = node.args
    message = under_shape(message)
    found = shape(message)
    if found is None or len(found) not in (2, 3) or not is_call(message, MUL):
        return
    for first, second in sides(message):
        shares, dropped = under_shape(second), None
        if is_call(shares, DROPOUT):
            shares, dropped = under_shape(shares.args[0]), shares
        if not is_call(shares, softmaxed) or shape(first) != found:
            continue
        if shape(second) != (*found[:-1], 1) or found[0] != captured.edges:
            continue
        heads = 1 if len(found) == 2 else found[1]
        scores = scores_of(captured, shares.args[0], heads)
        if scores is None:
            return
        if dropped is not None:
            raise OddProducts("attention weights are dropped in training", node)
        if reduce not in ("sum", "add") or dim != 0 or groups != captured.nodes:
            raise OddProducts("an aggregation other than a sum by destination", node)
        if not used_once(shares):
            raise OddProducts("the attention weights are used elsewhere", node)
        if node in captured.differentiated:
            raise OddProducts(TWICE, node)
        _, index, number, along = shares.args
        if captured.index(index) != "dst" or number != captured.nodes or along != 0:
            raise OddProducts("the softmax is not over the same edges", node)
        values = rows_of(captured, first)
        if values is None:
            raise OddProducts(
                "what is weighed is no row of a neighbour, nor that and one of the edge", first
            )
        if None not in (scores.keys.edge, values.edge) and scores.keys.edge is not values.edge:
            raise OddProducts("keys and values have different rows of the edges", first)
        if is_float(node):
            _put(captured, node, scores, values, heads)
        return


def _put(captured: Captured, node: Call, scores: DotScores, values: KeyRows, heads: int) -> None:
    edge = values.edge if scores.keys.edge is None else scores.keys.edge
    options: dict[str, Any] = {"heads": heads, "scale": scores.scale, "dtype": dtype(node)}
    if edge is not None:
        options |= {"to_key": scores.keys.edge is not None, "to_value": values.edge is not None}
        if captured.target.device == "cpu" and edge in captured.folded and is_small(captured, edge):
            options |= {"edge": edge.args[0], "code": edge.args[2]}
        else:
            options["edge"] = _flat(captured, node, edge)
    operands = [_flat(captured, node, one) for one in (scores.query, scores.keys.node, values.node)]
    new = captured.before(node, dot_attention, *operands, captured.batch_edges, **options)
    heads_apart = captured.before(node, torch.reshape, new, shape(node))
    if captured.replace(node, heads_apart, NAME):
        for user in list(heads_apart.users):  # users that join the heads, as the operator does
            if is_method(user, *SHAPES) and shape(user) == shape(new):
                captured.replace(user, new)


def _flat(captured: Captured, anchor: Call, rows: Call) -> Call:
    """``[R, H * C]`` of ``[R, H, C]``."""
    found, below = shape(rows), rows
    assert found is not None
    while len(shape(below) or ()) != 2 and is_method(below, "view", "reshape", "unflatten"):
        below = below.args[0]
    flat = (found[0], math.prod(found[1:]))
    return below if shape(below) == flat else captured.before(anchor, torch.reshape, rows, flat)
