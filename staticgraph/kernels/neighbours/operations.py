"""The pointwise operations of programs, each in one place: its value in torch, and its slopes.

The CPU's and Triton's forms have the same names, in
:mod:`staticgraph.kernels.neighbours.cpu_operations` and
:mod:`staticgraph.kernels.neighbours.gpu_operations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from staticgraph.kernels.neighbours.program import Builder

# Gets the builder, the places of arguments and of the value, and that of the gradient; returns the
# places of the arguments' gradients, None for none.
Slopes = Callable[[Builder, Sequence[int], int, int], Sequence[int | None]]


class Pointwise(NamedTuple):
    """An operation on numbers.

    Attributes:
        torch: the same of tensors.
        slopes: its derivative; None for an operation without one.
    """

    torch: Callable[..., Any]
    slopes: Slopes | None = None


def _unary(slope: Callable[[Builder, int, int], int]) -> Slopes:
    """The slopes of a function of one number, from its slope at the number and the value."""
    return lambda b, args, value, grad: [b.point("mul", grad, slope(b, args[0], value))]


def _div(b: Builder, args: Sequence[int], value: int, grad: int) -> list[int | None]:
    first = b.point("div", grad, args[1])
    return [first, b.point("neg", b.point("mul", first, value))]


def _where(b: Builder, args: Sequence[int], value: int, grad: int) -> list[int | None]:
    return [None, b.point("where", args[0], grad, 0.0), b.point("where", args[0], 0.0, grad)]


def _sign(b: Builder, x: int, value: int) -> int:
    below = b.point("where", b.point("lt", x, 0.0), -1.0, 0.0)
    return b.point("where", b.point("lt", 0.0, x), 1.0, below)


def _bell(b: Builder, x: int, value: int) -> int:
    falling = b.point("exp", b.point("neg", b.point("mul", x, x)))
    return b.point("mul", falling, 2 / math.sqrt(math.pi))


POINTWISE: dict[str, Pointwise] = {
    "add": Pointwise(torch.add, lambda b, args, value, grad: [grad, grad]),
    "sub": Pointwise(torch.sub, lambda b, args, value, grad: [grad, b.point("neg", grad)]),
    "mul": Pointwise(
        torch.mul,
        lambda b, args, value, grad: [b.point("mul", grad, args[1]), b.point("mul", grad, args[0])],
    ),
    "div": Pointwise(torch.div, _div),
    "neg": Pointwise(torch.neg, lambda b, args, value, grad: [b.point("neg", grad)]),
    "abs": Pointwise(torch.abs, _unary(_sign)),
    "exp": Pointwise(torch.exp, _unary(lambda b, x, value: value)),
    "log": Pointwise(torch.log, _unary(lambda b, x, value: b.point("div", 1.0, x))),
    "log1p": Pointwise(
        torch.log1p, _unary(lambda b, x, value: b.point("div", 1.0, b.point("add", x, 1.0)))
    ),
    "sqrt": Pointwise(torch.sqrt, _unary(lambda b, x, value: b.point("div", 0.5, value))),
    "sin": Pointwise(torch.sin, _unary(lambda b, x, value: b.point("cos", x))),
    "cos": Pointwise(torch.cos, _unary(lambda b, x, value: b.point("neg", b.point("sin", x)))),
    "erf": Pointwise(torch.erf, _unary(_bell)),
    "tanh": Pointwise(
        torch.tanh,
        _unary(lambda b, x, value: b.point("sub", 1.0, b.point("mul", value, value))),
    ),
    "sigmoid": Pointwise(
        torch.sigmoid,
        _unary(lambda b, x, value: b.point("mul", value, b.point("sub", 1.0, value))),
    ),
    "softplus": Pointwise(F.softplus, _unary(lambda b, x, value: b.point("sigmoid", x))),
    "where": Pointwise(torch.where, _where),
    "lt": Pointwise(torch.lt),
    "le": Pointwise(torch.le),
    "eq": Pointwise(torch.eq),
    "not": Pointwise(torch.logical_not),
    "and": Pointwise(torch.logical_and),
    "or": Pointwise(torch.logical_or),
}
