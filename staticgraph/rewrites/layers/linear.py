"""Rewrites a linear layer with the ReLU after it, on CUDA: ReLU's mask and the bias's gradient are
in its backward's own launches. On a CPU torch's products stay (docs/notes/kernels.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.linear import linear
from staticgraph.rewrites.captured_graph.canonical_ops import (
    LINEAR,
    RELU,
    Call,
    dtype,
    is_call,
    only_user,
    shape,
)
from staticgraph.rewrites.captured_graph.captured import Captured

NAME = "linear"


def autocast(x: Tensor) -> torch.dtype:
    """The dtype in which torch's own linear layer would run; autocast does not know this library's
    operator, which therefore casts its inputs itself."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def product(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """``relu(x @ weight.T + bias)`` in the dtype of autocast; operands are cast as they are
    read."""
    return linear(x, weight, bias, relu=relu, dtype=autocast(x))


def rewrite(captured: Captured) -> None:
    """Rewrites every linear layer that gains from it."""
    if captured.target.device == "cpu":
        return
    for node in list(captured.graph.nodes):
        if is_call(node, LINEAR) and _obstacle(captured, node, *node.args) is None:
            relu = _relu_after(node)
            end = only_user(node) if relu else node
            new = captured.before(end, product, *node.args, relu)
            captured.replace(node, new, NAME, last=end)


def _obstacle(
    captured: Captured, node: Call, x: Call, weight: Call, bias: Call | None
) -> str | None:
    rows, sides = shape(x), shape(weight)
    if rows is None or sides is None or len(rows) != 2 or len(sides) != 2:
        return "no matrix"
    dtypes = {dtype(x), dtype(weight), dtype(node)}
    if bias is None and not _relu_after(node):
        return "torch's own product does as well without a bias"
    return "float64 under autocast" if len(dtypes) > 1 and torch.float64 in dtypes else None


def _relu_after(node: Call) -> bool:
    return is_call(only_user(node), RELU)
