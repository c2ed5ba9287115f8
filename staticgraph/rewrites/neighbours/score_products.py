"""Applies the vectors of attention to the weights of a linear layer of edges, as in GAT's scores.

``(x * a).sum(-1)`` of ``x [E, H, C]``, a linear layer of edges' attributes, is a product of the
attributes with few columns, so that ``x`` need not be computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.rewrites.captured_graph.canonical_ops import (
    LINEAR,
    MUL,
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


def by_folded(edge_attr: Tensor, weight: Tensor, vector: Tensor) -> Tensor:
    """``[R, D]``, ``[H * C, D]`` and ``[1, H, C]`` -> ``[R, H]``, without autocast, which would
    round the small scores: stock code adds them in float32."""
    heads = vector.size(1)
    folded = (weight.view(heads, vector.size(2), -1) * vector.view(heads, -1, 1)).sum(1)
    dtype = torch.promote_types(edge_attr.dtype, folded.dtype)
    with torch.autocast(edge_attr.device.type, enabled=False):
        return edge_attr.to(dtype) @ folded.t().to(dtype)


def rewrite(captured: Captured) -> None:
    """Rewrites every such score."""
    if not captured.has_edges:
        return
    of_nodes = captured.nodes, captured.nodes_at("src")
    for node in list(captured.graph.nodes):
        rows, vector = _score(node) or (None, None)
        layer = under_shape(rows)
        if not is_call(layer, LINEAR) or (shape(rows) or (0,))[0] in of_nodes:
            continue
        edge_attr, weight, bias = layer.args
        if bias is None:
            new = captured.before(node, by_folded, edge_attr, weight, vector)
            captured.replace(node, new, NAME)


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
