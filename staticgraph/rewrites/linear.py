"""A linear layer with the ReLU after it: by oneDNN where the graph runs on a CPU as it is, on CUDA
with ReLU's mask and the bias's gradient in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.linear import available, linear
from staticgraph.nn.fused.linear import autocast
from staticgraph.rewrites.captured import Captured
from staticgraph.rewrites.words import LINEAR, RELU, Call, dtype, is_call, shape, used_once

NAME = "linear"
# Multiplications below which torch's smaller overhead wins; see docs/kernels.md.
SMALL = 1 << 20


def product(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """``relu(x @ weight.T + bias)`` in the dtype of autocast, cast as it is read."""
    return linear(x, weight, bias, relu=relu, dtype=autocast(x))


def rewrite(captured: Captured) -> None:
    """Every product of a matrix that gains."""
    for node in list(captured.graph.nodes):
        if is_call(node, LINEAR) and _obstacle(captured, node) is None:
            _at(captured, node)


def _obstacle(captured: Captured, node: Call) -> str | None:
    x, weight, bias = node.args
    rows, out = shape(x), shape(weight)
    if rows is None or out is None or len(rows) != 2:
        return "no matrix"
    if node in captured.differentiated:
        return "its derivative is taken in the forward, and has one of its own"
    found = {dtype(x), dtype(weight), dtype(node)}
    if captured.target.device != "cpu":
        if bias is None and not _relu_after(node):
            return "torch's own product does as well without a bias"
        return "float64 under autocast" if len(found) > 1 and torch.float64 in found else None
    if captured.target.compiled or found != {torch.float32} or not available():
        return "on a CPU only float32 gains, in a graph that runs as it is"
    return "too small to gain" if rows[0] * rows[1] * out[0] < SMALL else None


def _relu_after(node: Call) -> bool:
    return used_once(node) and is_call(next(iter(node.users)), RELU)


def _at(captured: Captured, node: Call) -> None:
    last = next(iter(node.users)) if _relu_after(node) else node
    made = captured.before(last, product, *node.args, last is not node)
    captured.rewrote(NAME, node)
    captured.replace_chain(node, last, made)
