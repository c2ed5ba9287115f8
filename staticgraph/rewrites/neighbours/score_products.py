"""Rewrites scores of attention that are products of rows with one vector per head to products of
matrices, as GAT's are.

``(x * a).sum(-1)`` of ``x [N, H, C]`` writes and reads all of ``x`` once more. Several of the same
rows are one product, and of edges' rows that are a linear layer, the vector is applied to its
weights, so that they need not be computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.rewrites.captured_graph.canonical_ops import (
    GATHER,
    LINEAR,
    MUL,
    SELECT,
    Call,
    is_call,
    is_float,
    is_method,
    shape,
    sides,
    under_shape,
)
from staticgraph.rewrites.captured_graph.captured import Captured

NAME = "score_products"


def full_precision(rows: Tensor) -> torch.autocast:
    """Disables autocast, which would round the small scores: stock code adds them in float32."""
    return torch.autocast(rows.device.type, enabled=False)


def by_vectors(rows: Tensor, vectors: list[Tensor]) -> Tensor:
    """``[R, H, C]`` and ``K`` vectors ``[1, H, C]`` -> ``[R, K, H]``: one product with a matrix,
    which is zero where a column of one head would meet another head."""
    with full_precision(rows):
        weight = torch.cat(vectors)
        dtype = torch.promote_types(rows.dtype, weight.dtype)
        heads = torch.eye(weight.size(1), dtype=dtype, device=weight.device)
        matrix = weight.to(dtype).permute(1, 2, 0).unsqueeze(-1) * heads[:, None, None]
        return (rows.flatten(1).to(dtype) @ matrix.flatten(0, 1).flatten(1)).view(
            len(rows), *weight.shape[:2]
        )


def by_folded(edge_attr: Tensor, weight: Tensor, vector: Tensor) -> Tensor:
    """``[R, D]``, ``[H * C, D]`` and ``[1, H, C]`` -> ``[R, H]``: the vector is applied to the
    weights, and not to the projected rows."""
    heads = vector.size(1)
    folded = (weight.view(heads, vector.size(2), -1) * vector.view(heads, -1, 1)).sum(1)
    dtype = torch.promote_types(edge_attr.dtype, folded.dtype)
    with full_precision(edge_attr):
        return edge_attr.to(dtype) @ folded.t().to(dtype)


def rewrite(captured: Captured) -> None:
    """Rewrites every such score."""
    if not captured.has_edges:
        return
    of_rows: dict[Call, list[tuple[Call, Call]]] = {}
    for node in list(captured.graph.nodes):
        if (score := _score(node)) is None:
            continue
        rows, vector = score
        product = under_shape(rows)
        of_nodes = (shape(rows) or (0,))[0] in (captured.nodes, captured.nodes_at("src"))
        if is_call(product, LINEAR) and product.args[2] is None and not of_nodes:
            edge_attr, weight, _ = product.args
            new = captured.before(node, by_folded, edge_attr, weight, vector)
            captured.replace(node, new, NAME)
            continue
        of_rows.setdefault(rows, []).append((node, vector))
    for rows, scores in of_rows.items():
        if len(scores) < 2:
            continue
        first = scores[0][0]
        new = captured.before(first, by_vectors, rows, [vector for _, vector in scores])
        for place, (node, _) in enumerate(scores):
            for user in list(node.users):
                if is_call(user, GATHER):  # the same of gathered rows, without copies of columns
                    each = captured.before(user, GATHER, new, 0, user.args[2])
                    captured.replace(user, _column(captured, user, each, place))
            captured.replace(node, _column(captured, node, new, place), NAME)


def _column(captured: Captured, node: Call, scores: Call, place: int) -> Call:
    """The scores of one of the vectors."""
    strided = captured.before(node, SELECT, scores, 1, place)
    return captured.before(node, torch.clone, strided)


def _score(node: Call) -> tuple[Call, Call] | None:
    """``x`` and ``a`` of ``(x * a).sum(-1)``; None for anything else."""
    if not is_method(node, "sum") or not node.users or len(shape(node.args[0]) or ()) != 3:
        return None
    by_name = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | node.kwargs
    plain = by_name in ({"dim": dim} | keep for dim in (-1, 2) for keep in ({}, {"keepdim": False}))
    if not plain or not is_call(node.args[0], MUL) or not is_float(node):
        return None
    for rows, vector in sides(node.args[0]):
        sizes = shape(rows)
        if sizes is not None and shape(vector) == (1, *sizes[1:]) and sizes[0] != 1:
            return rows, vector
    return None
