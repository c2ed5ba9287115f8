"""Rewrites GCN to one program for normalisation, self-loops, weighted sum and bias.

Degrees are computed once per forward (:func:`degrees`). The self-loops that a GCN layer adds are
not edges of the batch, and need not become edges: the message of a self-loop is the node's own row,
a term of the sum. Edges that are self-loops already are left out of it.

Source: Kipf and Welling 2017, arXiv 1609.02907, as ``torch_geometric.nn.conv.gcn_conv.gcn_norm``.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours import Builder, Result, neighbours_of
from staticgraph.kernels.neighbours.program import Program, known
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
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured

NAME = "gcn"


def degrees(
    edges: Edges, weight: Tensor | None, fill: float, loops: bool, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes inverse square roots of the degrees, and the weight of each node's self-loop.

    Args:
        edges: their ends and pointers.
        weight: ``[E]``, or None if every edge has weight one.
        fill: the weight of an added self-loop.
        loops: whether to add a self-loop to each node without one; an existing self-loop keeps its
            weight (the last one's, if there are several).
        like: a tensor of the features' dtype.

    Returns:
        ``[N]`` and ``[N]`` in the dtype of ``like`` and ``weight``: ``degree ** -0.5``, zero where
        the degree is zero, and the self-loop's weight, zero without ``loops``. Both are
        differentiable in ``weight``; where the degree is zero the gradient is zero, while PyG's is
        NaN.
    """
    nodes, program = edges.row_ptr.size(0) - 1, known(_degree(loops, weight is not None))
    if weight is None:
        loop_weight, operands = like.new_ones(nodes) if loops else like.new_zeros(nodes), [like]
    else:
        loop_weight = weight.new_full((nodes,), fill if loops else 0.0)
        if loops:
            dst = torch.where(edges.src == edges.dst, edges.dst, nodes)  # others beside all nodes
            loop_weight = torch.cat([loop_weight, loop_weight[:1]]).index_put((dst,), weight)[
                :nodes
            ]
        operands = [like, weight, loop_weight]
    degree = neighbours_of(program, operands, [], edges)[0]
    none = degree == 0
    return degree.masked_fill(none, 1).pow(-0.5).masked_fill(none, 0), loop_weight


@cache
def _degree(loops: bool, weighted: bool) -> Program:
    """The sum of a node's weights and its own; of ones without weights. Its first operand is read
    for its dtype alone."""
    b = Builder()
    b.operand("all", (0,))
    weight, own_weight = b.number(1.0), b.number(1.0 if loops else 0.0)
    if weighted:
        weight, own_weight = b.operand("edge", ()), b.operand("target", ())
    if loops:
        weight = b.point("where", b.loop(), 0.0, weight)
    return b.program([Result(weight, "sum", own_weight)])


@cache
def _weighed(width: int, weighted: bool, biased: bool, loops: bool) -> Program:
    """``bias + own[i] root[i]^2 x[i] + sum over e into i of w[e] root[i] root[j] x[j]``; without
    weights own weights are one."""
    b = Builder()
    x, ends = b.operand("source", (width,)), [b.operand(end, ()) for end in ("source", "target")]
    share, starts = b.point("mul", *ends), []
    if loops:
        own_share = b.point("mul", ends[1], ends[1])
        own_share = b.point("mul", own_share, b.operand("target", ())) if weighted else own_share
        starts.append(b.point("mul", own_share, x))
    if weighted:
        share = b.point("mul", share, b.operand("edge", ()))
    if loops:
        share = b.point("where", b.loop(), 0.0, share)
    if biased:
        bias = b.operand("all", (width,))
        starts.append(bias if not starts else b.point("add", starts.pop(), bias))
    return b.program([Result(b.point("mul", share, x), "sum", *starts)])


def rewrite(captured: Captured) -> None:
    """Rewrites every sum of rows weighted by ``gcn_norm``."""
    for node in captured.calls(SCATTER):
        norm = _norm_of(node.args[1])
        if norm is not None:
            _rewrite_node(captured, node, norm)


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


def _rewrite_node(captured: Captured, node: Call, norm: Call) -> None:
    edge_index, weight, _, _, fill, loops, flow, _, _ = norm.args
    x = _weighed_rows(node.args[0], norm)
    reason = None
    if not captured.facts or under_shape(edge_index) is not captured.facts["edge_index"]:
        reason = "edge_index is not the batch's own, so its row pointers do not fit"
    elif x is None:
        reason = "the message is no neighbour's row times its weight"
    elif node.args[2:] != (0, captured.nodes, "sum") or flow != "source_to_target":
        reason = "an aggregation other than a sum by destination"
    if reason is not None:
        captured.miss(NAME, node, reason)
        return
    assert x is not None
    # PyG fills with 2 (improved) only if there are edge weights.
    fill = fill if weight is not None else 1.0
    kind = dtype(x)
    assert kind is not None
    kind = torch.promote_types(kind, torch.float32)
    like = captured.constant(f"like_{str(kind)[6:]}", torch.empty(0, dtype=kind))
    key = ("gcn", weight, fill, loops, kind)
    edges = captured.all_edges
    arguments = edges, weight, fill, loops, like
    degree_call = captured.shared(key, lambda: captured.before(norm, degrees, *arguments))
    root, loop_weight = (captured.item(norm, degree_call, place, node) for place in (0, 1))
    total, bias = added_to(node)
    if shape(bias) != (shape(node) or ())[1:]:
        total, bias = node, None
    _, width = shape(x) or (0, 0)
    program = _weighed(width, weight is not None, bias is not None, loops)
    operands = [x, root, root, *([loop_weight] if loops and weight is not None else [])]
    operands += [operand for operand in (weight, bias) if operand is not None]
    new = captured.before(total, neighbours_of, known(program), operands, [], edges)
    new = captured.item(total, new, 0, node)
    if dtype(new) != dtype(total):
        new = captured.before(total, torch.Tensor.to, new, dtype(total))
    captured.replace(node, new, NAME, last=total)


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
