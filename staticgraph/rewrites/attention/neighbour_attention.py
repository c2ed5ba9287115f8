"""Rewrites softmax over neighbours and weighted sum (GAT, GATv2) to one operator.

The operator is ``neighbour_attention``. Read upwards from the sum: rows ``x[src]`` times the shares
from a softmax by destination of scores. The scores are a sum of one number per node at each end and
one per edge, under a leaky ReLU (GAT), or a product with the leaky ReLU of both rows' sum (GATv2).
Self-loops that were added after the batch's own edges become terms of the nodes themselves.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.kernels.neighbour_attention import neighbour_attention
from staticgraph.kernels.pair_score import pair_score
from staticgraph.nn.functions import softmaxed
from staticgraph.nn.utils.self_loops import loops_added, loops_removed
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    DROPOUT,
    GATHER,
    LEAKY_RELU,
    LINEAR,
    MUL,
    SCATTER,
    SELECT,
    Call,
    is_call,
    is_float,
    is_method,
    shape,
    sides,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import TWICE, Captured

NAME = "neighbour_attention"


class IndexedEdges(NamedTuple):
    """The edges that a layer's index names.

    Attributes:
        loops: whether one self-loop per node was added and existing self-loops were left out.
        first: the row at which the added self-loops begin.
        rows: the number of rows of a tensor over all of them.
    """

    loops: bool
    first: int
    rows: int


class AdditiveScores(NamedTuple):
    """GAT's scores: one number per node and head at each end, ``[N, H]``, and one per edge,
    ``[rows, H]``."""

    source: Call | None
    destination: Call | None
    edge: Call | None
    slope: float


def full_precision(rows: Tensor) -> torch.autocast:
    """Disables autocast, which would round the small scores: stock code adds them in float32."""
    return torch.autocast(rows.device.type, enabled=False)


def pair_of(source: Tensor, destination: Tensor) -> Tensor:
    """``[N, H]`` twice -> ``[H, N, 2]``, the layout that the operator reads."""
    return torch.stack((source.t(), destination.t()), -1)


def pair_by_weights(rows: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    """``[N, H * C]`` and two weights ``[1, H, C]`` -> ``[H, N, 2]``, in one product."""
    with full_precision(rows):
        weight = torch.cat([source, destination])
        by_head = rows.view(len(rows), *weight.shape[1:]).transpose(0, 1)
        dtype = torch.promote_types(rows.dtype, weight.dtype)
        return torch.bmm(by_head.to(dtype), weight.permute(1, 2, 0).to(dtype))


def edge_by_weights(edge_attr: Tensor, weight: Tensor, attention: Tensor) -> Tensor:
    """``[R, D]``, ``[H * C, D]`` and ``[1, H, C]`` -> ``[R, H]``: the product with the attention
    vector is applied to the weights, and not to the projected edges."""
    heads = attention.size(1)
    folded = (weight.view(heads, attention.size(2), -1) * attention.view(heads, -1, 1)).sum(1)
    dtype = torch.promote_types(edge_attr.dtype, folded.dtype)
    with full_precision(edge_attr):
        return edge_attr.to(dtype) @ folded.t().to(dtype)


def rewrite(captured: Captured) -> None:
    """Rewrites every sum by the batch's own destinations that is weighted by such a softmax."""
    if not captured.facts:
        return
    for node in captured.calls(SCATTER):
        if len(shape(node) or ()) == 3:
            _at(captured, node)


def edges_of(captured: Captured, index: Any, place: int) -> tuple[IndexedEdges, Any] | None:
    """The edges that a vector of sources (0) or destinations (1) covers, and the pair it is part
    of; None unless it is the batch's own, or that with one self-loop per node."""
    index = under_shape(index)
    if captured.index(index) == ("src", "dst")[place]:
        return IndexedEdges(False, captured.edges, captured.edges), captured.facts["edge_index"]
    if not is_call(index, SELECT) or index.args[1:] != (0, place):
        return None
    added = _taken(index.args[0], loops_added)
    if added is None:
        return None
    removed = _taken(added.args[0], loops_removed)
    if removed is None or under_shape(removed.args[0]) is not captured.facts["edge_index"]:
        return None
    return IndexedEdges(True, removed.args[4], added.args[4]), added


def _taken(node: Any, function: Any) -> Call | None:
    taken = is_call(node, operator.getitem) and node.args[1] == 0
    return node.args[0] if taken and is_call(node.args[0], function) else None


def _at(captured: Captured, node: Call) -> None:
    message, index, dim, groups, reduce = node.args
    found = edges_of(captured, index, 1)
    if found is None or not is_call(message, MUL):
        return
    edges, pair = found
    for first, second in sides(message):
        rows, shares = _rows(captured, first, pair), under_shape(second)
        dropped = is_call(shares, DROPOUT)
        if dropped:
            shares = shares.args[0]
        if rows is None or not is_call(shares, softmaxed):
            continue
        if shape(second) != (edges.rows, *(shape(rows) or ())[1:2], 1):  # one number per head
            continue
        reason = None
        if dropped:
            reason = "attention weights are dropped in training"
        elif reduce not in ("sum", "add") or dim != 0 or groups != captured.nodes:
            reason = "an aggregation other than a sum by destination"
        elif not used_once(shares):
            reason = "the attention weights are used elsewhere"
        elif node in captured.differentiated:
            reason = TWICE
        elif _over(captured, shares.args[1], 1, pair) is None or shares.args[3] != 0:
            reason = "the softmax is not over the same edges"
        if reason is None:
            reason = _fuse(captured, node, rows, shares.args[0], edges, pair)
        if reason is not None:
            captured.miss(NAME, node, reason)
        return


def _over(captured: Captured, index: Any, place: int, pair: Any) -> Any:
    found = edges_of(captured, index, place)
    return found if found is not None and found[1] is pair else None


def _rows(captured: Captured, node: Any, pair: Any) -> Call | None:
    """``x [N, H, C]`` of ``x[src]``."""
    node = node if is_call(node, GATHER) else under_shape(node)
    if not is_call(node, GATHER) or _over(captured, node.args[2], 0, pair) is None:
        return None
    found = shape(node.args[0])
    return node.args[0] if found is not None and len(found) == 3 else None


def _fuse(
    captured: Captured, node: Call, rows: Call, scores: Any, edges: IndexedEdges, pair: Any
) -> str | None:
    """Inserts the operator; returns the reason if the scores have no known form."""
    heads = shape(rows)[1]  # pyright: ignore[reportOptionalSubscript]
    flat = _flat(captured, node, rows)
    options: dict[str, Any] = {"heads": heads, "loops": edges.loops}
    given = _of_pairs(captured, node, scores, pair, edges, heads)
    if given is None:  # any score with one number per edge is a sum, if only of itself
        found = _summed(captured, scores, pair, edges.rows, heads)
        if not isinstance(found, AdditiveScores):
            return found
        given = _of_nodes(captured, node, found, (rows, flat), edges) | {"slope": found.slope}
    options |= given
    made = captured.before(node, neighbour_attention, flat, captured.batch_edges, **options)
    made = captured.before(node, torch.reshape, made, shape(node))
    captured.replace(node, made, NAME)
    return None


def _flat(captured: Captured, node: Call, rows: Call) -> Call:
    found = shape(rows)
    assert found is not None
    if is_method(rows, "view", "reshape") and shape(rows.args[0]) == (
        found[0],
        found[1] * found[2],
    ):
        return rows.args[0]
    return captured.before(node, torch.reshape, rows, (found[0], -1), like=rows)


def _summed(
    captured: Captured, scores: Any, pair: Any, rows: int, heads: int
) -> AdditiveScores | str:
    slope = 1.0
    if is_call(scores, LEAKY_RELU) and used_once(scores):
        scores, slope = scores.args
    parts: list[Any] = [None, None, None]
    left = [scores]
    while left:
        term = left.pop()
        if is_call(term, ADD) and used_once(term):
            left += term.args
            continue
        place = 2
        if is_call(term, GATHER) and len(shape(term.args[0]) or ()) == 2:
            if _over(captured, term.args[2], 0, pair) is not None:
                place = 0
            elif _over(captured, term.args[2], 1, pair) is not None:
                place = 1
        read = shape(term.args[0]) if place < 2 else shape(term)
        wanted = (captured.nodes if place < 2 else rows, heads)
        if parts[place] is not None or not is_float(term) or read != wanted:
            return "the scores are no sum of one number at each end and one per edge"
        parts[place] = term.args[0] if place < 2 else term
    if (parts[0] is None) != (parts[1] is None):
        return "the scores read one end of the edges alone"
    return AdditiveScores(parts[0], parts[1], parts[2], slope)


def _of_nodes(
    captured: Captured,
    node: Call,
    found: AdditiveScores,
    given: tuple[Call, Call],
    edges: IndexedEdges,
) -> dict[str, Any]:
    """Operands of GAT's scores; ``given`` are the summed rows, ``[N, H, C]`` and ``[N, H * C]``."""
    options: dict[str, Any] = {}
    rows, flat = given
    if found.source is not None:
        weights = [_weight_of(part, rows) for part in (found.source, found.destination)]
        if None not in weights:
            options["pair"] = captured.before(node, pair_by_weights, flat, *weights)
        else:
            options["pair"] = captured.before(node, pair_of, found.source, found.destination)
    if found.edge is not None:
        options |= _cut(captured, node, _folded(captured, node, found.edge), edges)
    return options


def _weight_of(part: Any, rows: Call) -> Call | None:
    """``att`` of ``(rows * att).sum(-1)``, or None."""
    if not _adds_columns(part) or not is_call(part.args[0], MUL):
        return None
    for first, second in sides(part.args[0]):
        found = shape(second)
        if first is rows and found is not None and found == (1, *(shape(rows) or ())[1:]):
            return second
    return None


def _adds_columns(node: Any) -> bool:
    """Whether a node is ``x.sum(-1)`` over three dimensions, in any spelling."""
    if not is_method(node, "sum") or len(shape(node.args[0]) or ()) != 3:
        return False
    given = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | node.kwargs
    return given in ({"dim": dim} | keep for dim in (-1, 2) for keep in ({}, {"keepdim": False}))


def _folded(captured: Captured, node: Call, edge: Call) -> Call:
    """One number per edge and head; weights of a linear layer are folded in."""
    if _adds_columns(edge) and is_call(edge.args[0], MUL):
        for first, second in sides(edge.args[0]):
            product, found = under_shape(first), shape(second)
            folds = is_call(product, LINEAR) and product.args[2] is None
            if folds and found is not None and len(found) == 3 and found[0] == 1:
                edge_attr, weight, _ = product.args
                return captured.before(node, edge_by_weights, edge_attr, weight, second, like=edge)
    return edge


def _cut(captured: Captured, node: Call, edge: Call, edges: IndexedEdges) -> dict[str, Any]:
    """The rows of the edges and those of the self-loops."""
    if not edges.loops:
        return {"edge": edge}
    first = captured.before(node, torch.narrow, edge, 0, 0, captured.edges, like=edge)
    own = captured.before(node, torch.narrow, edge, 0, edges.first, captured.nodes, like=edge)
    return {"edge": first, "own": own}


def _of_pairs(
    captured: Captured, node: Call, scores: Any, pair: Any, edges: IndexedEdges, heads: int
) -> dict[str, Any] | None:
    """GATv2: ``(leaky_relu(left[src] + right[dst] + edge) * att).sum(-1)``."""
    if not _adds_columns(scores) or not is_call(scores.args[0], MUL) or not used_once(scores):
        return None
    for first, second in sides(scores.args[0]):
        weighed = shape(second)
        if not is_call(first, LEAKY_RELU) or weighed is None or weighed[:-1] != (1, heads):
            continue
        summed, slope = first.args
        parts: list[Any] = [None, None, None]
        left = [summed]
        while left:
            term = left.pop()
            if is_call(term, ADD):
                left += term.args
                continue
            place = 2
            if is_call(term, GATHER):
                for end in (0, 1):
                    if parts[end] is None and _over(captured, term.args[2], end, pair) is not None:
                        place = end
            if parts[place] is not None:
                return None
            parts[place] = term.args[0] if place < 2 else term
        sizes = captured.nodes, captured.nodes, edges.rows
        if parts[0] is None or parts[1] is None:
            return None
        if any(
            part is not None and shape(part) != (size, *weighed[1:])
            for part, size in zip(parts, sizes, strict=True)
        ):
            return None
        ends = [_flat(captured, node, part) for part in parts[:2]]
        attention = captured.before(node, torch.reshape, second, (heads, -1), like=second)
        given: dict[str, Any] = {"slope": slope}
        if parts[2] is not None:
            rows = _flat(captured, node, parts[2])
            given |= _cut(captured, node, rows, edges)
        made = captured.before(node, pair_score, *ends, attention, captured.batch_edges, **given)
        captured.rewrote("pair_score", scores)
        score = captured.item(node, made, 0, scores)
        found = {"edge": score}
        if edges.loops:
            found["own"] = captured.item(node, made, 1, scores)
        return found
    return None
