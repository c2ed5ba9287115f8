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
    running = running_of(mean, var, tracked, momentum)
    given = {"addend": addend, "residual": residual, "running": running}
    return batch_norm(x, weight, bias, count, eps=eps, relu=relu, **given)[0]


def running_of(
    mean: Tensor | None, var: Tensor | None, tracked: Tensor | None, momentum: float | None
) -> Running | None:
    """The running statistics of a norm; None if it keeps none."""
    if mean is None or var is None or tracked is None:
        return None
    return Running(mean, var, tracked, momentum)


def rewrite(captured: Captured) -> None:
    """Rewrites every norm."""
    for node in captured.calls(normed):
        _at(captured, node)


def _at(captured: Captured, node: Call) -> None:
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
    made = captured.before(last, joined, *operands, like=node)
    captured.replace(node, made, NAME, last=last)


def _read_between(statistics: list[Any], node: Call, last: Call) -> bool:
    """Whether a call between a norm and the end of what it would replace reads or updates the
    norm's running statistics, in any view: both must come in the order of the forward."""
    memory = {storage(one) for one in map(tensor, statistics) if one is not None}
    while node is not last:
        node = node.next
        operands = (tensor(one) for one in node.all_input_nodes)
        if any(one is not None and storage(one) in memory for one in operands):
            return True
    return False
