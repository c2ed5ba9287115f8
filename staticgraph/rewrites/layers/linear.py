"""Rewrites a linear layer with the ReLU after it.

On CUDA, ReLU's mask and the bias's gradient are in its backward's own launches; on a CPU a graph
that runs operation by operation gets oneDNN's products where they are faster, those of a GRU cell
and of plain matrices included.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor

from staticgraph.kernels.linear import linear, onednn_gains
from staticgraph.rewrites.captured_graph.canonical_ops import (
    LINEAR,
    RELU,
    Call,
    dtype,
    is_call,
    is_method,
    only_user,
    shape,
)
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.captured_graph.user_code import differentiates

NAME = "linear"
_PRODUCTS = (torch.matmul, torch.mm, operator.matmul)


def autocast(x: Tensor) -> torch.dtype:
    """The dtype in which torch's own linear layer would run; autocast does not know this library's
    operator, which therefore casts its inputs itself."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def product(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """``relu(x @ weight.T + bias)`` in the dtype of autocast; operands are cast as they are
    read."""
    out = linear(x.flatten(0, -2), weight, bias, relu=relu, dtype=autocast(x))
    return out if x.dim() == 2 else out.unflatten(0, x.shape[:-1])


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
    reset, update = (reset + of_reset).sigmoid(), (update + of_update).sigmoid()
    return torch.lerp(torch.addcmul(new, reset, of_new).tanh(), state, update)


def rewrite(captured: Captured) -> None:
    """Rewrites every matrix product that gains from it."""
    on_cpu = captured.target.device == "cpu"
    for node in list(captured.graph.nodes):
        if is_call(node, LINEAR):
            _rewrite_layer(captured, node, *node.args)
        elif on_cpu and (is_call(node, *_PRODUCTS) or is_method(node, "matmul", "mm")):
            if len(node.args) == 2 and len(shape(node.args[1]) or ()) == 2:
                weight = captured.before(node, torch.t, node.args[1])
                _rewrite_layer(captured, node, node.args[0], weight, None)
        elif on_cpu and is_call(node, torch.gru_cell):
            x, state, *weights = node.args
            layers = (x, weights[0]), (state, weights[1])
            if all(_obstacle(captured, node, *layer, None) is None for layer in layers):
                captured.replace(node, captured.before(node, gru_cell, *node.args), NAME)


def _rewrite_layer(
    captured: Captured, node: Call, x: Call, weight: Call, bias: Call | None
) -> None:
    if _obstacle(captured, node, x, weight, bias) is None:
        relu = _relu_after(node)
        end = only_user(node) if relu else node
        new = captured.before(end, product, x, weight, bias, relu)
        captured.replace(node, new, NAME, last=end)


def _obstacle(
    captured: Captured, node: Call, x: Call, weight: Call, bias: Call | None
) -> str | None:
    rows, sides = shape(x), shape(weight)
    if rows is None or sides is None or len(rows) < 2 or len(sides) != 2:
        return "no matrix"
    dtypes = {dtype(x), dtype(weight), dtype(node)}
    if captured.target.device == "cpu":
        if captured.target.compiled or dtypes != {torch.float32}:
            return "Inductor has products of its own, and other dtypes are oneDNN's in torch"
        gains = onednn_gains(math.prod(rows[:-1]), sides[1], sides[0])
        return None if gains else "torch's product is as fast"
    if len(rows) != 2:
        return "no matrix"
    if (
        bias is None
        and not _relu_after(node)
        and not any(map(differentiates, captured.graph.nodes))
    ):
        return "torch's own product does as well without a bias"
    return "float64 under autocast" if len(dtypes) > 1 and torch.float64 in dtypes else None


def _relu_after(node: Call) -> bool:
    return is_call(only_user(node), RELU)
