"""Rewrites dropout with the ReLU before and the residual after it: ``dropout_sum``, without a mask.

Which values are dropped is a function of a seed that is drawn once per forward, see
:mod:`staticgraph.kernels.dropout_sum`; the guarantees of ``torch.manual_seed`` still hold.
"""

from __future__ import annotations

import torch

from staticgraph.kernels.dropout_sum import draw_seed, dropout_sum
from staticgraph.rewrites.captured_graph.canonical_ops import (
    DROPOUT,
    RELU,
    Call,
    added_to,
    is_call,
    is_float,
    shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype

NAME = "dropout_sum"


def rewrite(captured: Captured) -> None:
    """Rewrites every dropout of a matrix."""
    nodes = [node for node in captured.graph.nodes if is_call(node, DROPOUT)]
    for number, node in enumerate(nodes):
        _rewrite_node(captured, node, number)


def _rewrite_node(captured: Captured, node: Call, number: int) -> None:
    x, p, _ = node.args
    if len(shape(node) or ()) != 2 or not is_float(node) or not 0 < p < 1:
        return
    relu = is_call(x, RELU) and used_once(x)
    if relu:
        x = x.args[0]
    last, residual = node, None
    total, other = added_to(node)
    if other is not node and shape(other) == shape(node) and same_dtype(node, other, total):
        last, residual = total, other
    seed = captured.once("seed", draw_seed, torch.device(captured.target.device))
    new = captured.before(last, dropout_sum, x, residual, seed, number, p=p, relu=relu)
    captured.replace(node, new, NAME, last=last)
