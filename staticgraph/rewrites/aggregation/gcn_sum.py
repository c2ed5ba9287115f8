"""Rewrites GCN to one operator for normalisation, self-loops, weighted sum and bias.

Degrees are computed once per forward.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from staticgraph.kernels.gcn_sum import gcn_degrees, gcn_sum
from staticgraph.nn.utils.self_loops import gcn_normed
from staticgraph.rewrites.captured_graph.canonical_ops import (
    GATHER,
    MUL,
    SCATTER,
    SELECT,
    Call,
    added_to,
    dtype,
    is_call,
    shape,
    sides,
    tensor,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import TWICE, Captured

NAME = "gcn_sum"


def rewrite(captured: Captured) -> None:
    """Rewrites every sum of rows weighted by ``gcn_norm``."""
    for node in captured.calls(SCATTER):
        norm = _norm_of(node.args[1])
        if norm is not None:
            _at(captured, node, norm)


def _norm_of(index: Any) -> Call | None:
    """The normalisation whose destinations these are, or None."""
    index = under_shape(index)
    if not is_call(index, SELECT) or index.args[1:] != (0, 1):
        return None
    return _made_by(index.args[0], 0)


def _made_by(node: Any, place: int) -> Call | None:
    if (
        is_call(node, operator.getitem)
        and node.args[1] == place
        and is_call(node.args[0], gcn_normed)
    ):
        return node.args[0]
    return None


def _at(captured: Captured, node: Call, norm: Call) -> None:
    edge_index, weight, _, _, fill, loops, flow, _, _ = norm.args
    x = _weighed_rows(node.args[0], norm)
    reason = None
    if not captured.facts or under_shape(edge_index) is not captured.facts["edge_index"]:
        reason = "edge_index is not the batch's own, so its row pointers do not fit"
    elif x is None:
        reason = "the message is no neighbour's row times its weight"
    elif node.args[2:] != (0, captured.nodes, "sum") or flow != "source_to_target":
        reason = "an aggregation other than a sum by destination"
    elif node in captured.differentiated:
        reason = TWICE
    if reason is not None:
        captured.miss(NAME, node, reason)
        return
    assert x is not None
    # PyG fills with 2 (improved) only if there are edge weights.
    fill = fill if weight is not None else 1.0
    found = tensor(x)
    assert found is not None
    like = captured.constant(f"like_{str(found.dtype)[6:]}", torch.empty(0, dtype=found.dtype))
    key = ("gcn", weight, fill, loops, found.dtype)
    edges = captured.batch_edges
    operands = (edges, weight, fill, loops, like)
    degrees = captured.shared(key, lambda: captured.before(norm, gcn_degrees, *operands))
    root, own = (captured.item(norm, degrees, place, node) for place in (0, 1))
    last, bias = with_bias(node)
    total = captured.before(
        last,
        gcn_sum,
        x,
        root,
        own,
        edges,
        weight=weight,
        bias=bias,
        loops=loops,
        dtype=dtype(last),
    )
    captured.replace(node, total, NAME, last=last)


def _weighed_rows(rows: Any, norm: Call) -> Call | None:
    """``x`` of ``weight.view(-1, 1) * x[src]`` with the weights and sources of this norm, or
    None."""
    if not is_call(rows, MUL) or not used_once(rows):
        return None
    for first, second in sides(rows):
        if _made_by(under_shape(first), 1) is norm and is_call(second, GATHER):
            index = under_shape(second.args[2])
            ours = is_call(index, SELECT) and index.args[1:] == (0, 0)
            if ours and _made_by(index.args[0], 0) is norm and len(shape(second) or ()) == 2:
                return second.args[0]
    return None


def with_bias(node: Call) -> tuple[Call, Call | None]:
    """Returns the sum with a bias ``[F]``, and the bias; the node and None if there is none."""
    total, other = added_to(node)
    return (total, other) if shape(other) == (shape(node) or ())[1:] else (node, None)
