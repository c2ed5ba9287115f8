"""Rewrites a linear layer with the ReLU after it: by oneDNN where the graph runs operation by
operation on a CPU, on CUDA with ReLU's mask and the bias's gradient in one pass. On a CPU this
includes a product written as ``x @ weight + bias``, and the two products of a GRU cell, for which
torch uses a slower library."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.linear import linear
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    LINEAR,
    RELU,
    Call,
    dtype,
    is_call,
    is_method,
    shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured

NAME = "linear"
# Multiplications below which torch's smaller overhead wins; see docs/kernels.md.
SMALL = 1 << 20
_PRODUCTS = (torch.matmul, torch.mm, operator.matmul)


def autocast(x: Tensor) -> torch.dtype:
    """The dtype in which torch's own linear layer would run; autocast does not know this library's
    operator, which therefore casts its inputs itself."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def product(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """``relu(x @ weight.T + bias)`` in the dtype of autocast; operands are cast as they are
    read."""
    return linear(x, weight, bias, relu=relu, dtype=autocast(x))


def product_as_written(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """``relu(x @ weight + bias)`` with ``weight`` ``[I, O]``."""
    return linear(x, weight.t(), bias, relu=relu)


def gru_cell(
    x: Tensor,
    state: Tensor,
    weight_x: Tensor,
    weight_state: Tensor,
    bias_x: Tensor | None,
    bias_state: Tensor | None,
) -> Tensor:
    """Returns the next state, as ``torch.nn.GRUCell`` defines it."""
    reset, update, new = linear(x, weight_x, bias_x).chunk(3, 1)
    of_reset, of_update, of_new = linear(state, weight_state, bias_state).chunk(3, 1)
    reset, update = (reset + of_reset).sigmoid_(), (update + of_update).sigmoid_()
    new = torch.addcmul(new, reset, of_new).tanh_()
    return torch.lerp(new, state, update)


def rewrite(captured: Captured) -> None:
    """Rewrites every matrix product that gains from it."""
    for node in list(captured.graph.nodes):
        if is_call(node, LINEAR):
            if _obstacle(captured, node, *node.args) is None:
                _at(captured, node, node, product, *node.args)
        elif is_call(node, *_PRODUCTS) or is_method(node, "matmul", "mm"):
            _as_written(captured, node)
        elif is_call(node, torch.gru_cell):
            _cell(captured, node)


def _obstacle(
    captured: Captured, node: Call, x: Call, weight: Call, bias: Call | None
) -> str | None:
    rows, sides = shape(x), shape(weight)
    if rows is None or sides is None or len(rows) != 2 or len(sides) != 2:
        return "no matrix"
    if node in captured.differentiated:
        return "its derivative is taken in the forward, and has one of its own"
    found = {dtype(x), dtype(weight), dtype(node)}
    if captured.target.device != "cpu":
        if bias is None and not _relu_after(node):
            return "torch's own product does as well without a bias"
        return "float64 under autocast" if len(found) > 1 and torch.float64 in found else None
    if captured.target.compiled or found != {torch.float32}:
        return "on a CPU only float32 gains, in a graph that runs as it is"
    return "too small to gain" if rows[0] * sides[0] * sides[1] < SMALL else None


def _as_written(captured: Captured, node: Call) -> None:
    """Rewrites a product by a matrix, with a vector that is added to every row, if any."""
    if captured.target.device != "cpu" or len(node.args) != 2 or node.kwargs:
        return
    x, weight = node.args
    if _obstacle(captured, node, x, weight, None) is not None:
        return
    last, bias = node, None
    after: Any = next(iter(node.users)) if used_once(node) else None
    if is_call(after, ADD):
        other = after.args[1] if after.args[0] is node else after.args[0]
        if shape(other) == (shape(node) or ())[1:] and dtype(other) == dtype(node):
            last, bias = after, other
    _at(captured, node, last, product_as_written, x, weight, bias)


def _cell(captured: Captured, node: Call) -> None:
    if captured.target.device != "cpu" or len(node.args) != 6 or node.kwargs:
        return
    x, state, weight_x, weight_state, bias_x, bias_state = node.args
    given = ((x, weight_x, bias_x), (state, weight_state, bias_state))
    if all(_obstacle(captured, node, *operands) is None for operands in given):
        captured.replace(node, captured.before(node, gru_cell, *node.args), NAME)


def _relu_after(node: Call) -> bool:
    return used_once(node) and is_call(next(iter(node.users)), RELU)


def _at(
    captured: Captured, node: Call, last: Call, function: Callable[..., Tensor], *operands: Call
) -> None:
    """Rewrites a product that ends at ``last``, with the ReLU after it."""
    relu = _relu_after(last)
    end = next(iter(last.users)) if relu else last
    made = captured.before(end, function, *operands, relu)
    captured.replace(node, made, NAME, last=end)
