"""Rewrites messages with one matrix per edge, as in ``NNConv``: ``edge_matrix_sum``.

The pattern is ``matmul(x[src][:, None], matrices)[:, 0]``, summed or averaged by destination. A
layer that is called again with the same edges reads the same matrices, whose gradients are then
summed inside the operator (:mod:`staticgraph.rewrites.layers.gradient_sums`).

This runs on a CPU only: the library has no CUDA kernel for it.
"""

from __future__ import annotations

from typing import Any

import torch

from staticgraph.kernels.edge_matrix_sum import edge_matrix_sum
from staticgraph.rewrites.aggregation.neighbour_sum import source
from staticgraph.rewrites.captured_graph.canonical_ops import (
    SCATTER,
    Call,
    is_call,
    is_method,
    shape,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype

NAME = "edge_matrix_sum"


def rewrite(captured: Captured) -> None:
    """Rewrites every sum and mean of such products by the batch's own destinations."""
    if not captured.facts or captured.target.device != "cpu":
        return
    for node in captured.calls(SCATTER):
        if captured.by_destination(node, "sum", "add", "mean"):
            _at(captured, node, node.args[0])


def _at(captured: Captured, node: Call, rows: Any) -> None:
    below = under_shape(rows)
    product = is_call(below, torch.matmul, torch.bmm) or is_method(below, "matmul", "bmm")
    if not product or len(below.args) != 2 or below.kwargs:
        return
    row, matrices = below.args
    edges, inputs, outputs = (*(shape(matrices) or ()), 0, 0, 0)[:3]
    given = under_shape(row)
    x = source(captured, given)
    if x is None or shape(x) != (captured.nodes, inputs) or edges != captured.edges:
        return
    if shape(row) != (edges, 1, inputs) or shape(rows) != (edges, outputs):
        return
    if not same_dtype(x, matrices, node) or not (used_once(below) and used_once(rows)):
        return
    mean = node.args[4] == "mean"
    made = captured.before(node, edge_matrix_sum, x, matrices, captured.batch_edges, mean=mean)
    captured.replace(node, made, NAME)
