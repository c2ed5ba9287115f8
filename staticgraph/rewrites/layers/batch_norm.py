"""Rewrites BatchNorm over real rows with the sum before it, and ReLU and residual after it.

``residual + relu(norm(x + addend))`` is one operator each for forward and backward. A dropout
between ReLU and residual belongs to :mod:`staticgraph.rewrites.layers.dropout`, which takes both.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from staticgraph.kernels.batch_norm import Running, batch_norm
from staticgraph.nn.norm.batch_norm import normed
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    DROPOUT,
    RELU,
    Call,
    added_to,
    is_call,
    is_float,
    only_user,
    shape,
    storage,
    tensor,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype

NAME = "batch_norm"


def joined(
    x: Tensor,
    addend: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    tracked: Tensor | None,
    momentum: float | None,
    eps: float,
    relu: bool,
) -> Tensor:
    """``residual + relu(norm(x + addend))``; see :func:`staticgraph.kernels.batch_norm`."""
    running = None
    if mean is not None and var is not None and tracked is not None:
        running = Running(mean, var, tracked, momentum)
    options: Any = {"addend": addend, "residual": residual, "running": running}
    return batch_norm(x, weight, bias, count, eps=eps, relu=relu, **options)[0]


def rewrite(captured: Captured) -> None:
    """Rewrites every norm."""
    for node in captured.calls(normed):
        _rewrite_node(captured, node)


def _rewrite_node(captured: Captured, node: Call) -> None:
    x, weight, bias, count, *rest = node.args
    addend = None
    if is_call(x, ADD) and used_once(x) and same_dtype(*x.args, x):
        first, second = x.args
        if shape(first) == shape(second) == shape(x):
            x, addend = first, second
    last, relu = node, False
    after = only_user(last)
    if after is not None and is_call(after, RELU) and not is_call(only_user(after), DROPOUT):
        last, relu = after, True
    residual = None
    total, other = added_to(last)
    if other is not last and shape(other) == shape(last) and is_float(other):
        residual, last = other, total
    if _read_between(rest[:3], node, last):
        last, relu, residual = node, False, None
    operands = (x, addend, residual, weight, bias, count, *rest, relu)
    new = captured.before(last, joined, *operands, like=node)
    captured.replace(node, new, NAME, last=last)


def _read_between(statistics: list[Any], node: Call, last: Call) -> bool:
    """Whether a call between a norm and the end of what it would replace reads or updates the
    norm's running statistics, in any view: both must come in the order of the forward."""
    memory = {storage(fake) for fake in map(tensor, statistics) if fake is not None}
    while node is not last:
        node = node.next
        operands = (tensor(operand) for operand in node.all_input_nodes)
        if any(fake is not None and storage(fake) in memory for fake in operands):
            return True
    return False
