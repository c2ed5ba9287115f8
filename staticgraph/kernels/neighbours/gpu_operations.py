"""The operations of programs as Triton expressions, which Triton's interpreter evaluates as well.

Numbers are float32 or float64, named ``WIDE`` in the kernel. The exponential, division, sine,
cosine, logarithm and error function are Triton's own; what is made of them here keeps its relative
accuracy next to zero and where an intermediate value overflows, as on a CPU
(:mod:`staticgraph.kernels.neighbours.cpu_operations`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

# Writes an expression to a variable, and returns its name.
Let = Callable[[str], str]


def _polynomial(x: str, coefficients: Iterable[float]) -> str:
    """The polynomial of these coefficients, the highest first."""
    first, *rest = map(repr, coefficients)
    text = first
    for coefficient in rest:
        text = f"({text} * {x} + {coefficient})"
    return text


def _log1p(let: Let, x: str) -> str:
    """``log(u) x / (u - 1)`` with ``u = 1 + x``, rounded (Kahan)."""
    u = let(f"1.0 + {x}")
    value = f"tl.log({u}) * ({x} / ({u} - 1.0))"
    return f"tl.where(({u} == 1.0) | ({x} == float('inf')), {x}, {value})"


def _tanh(let: Let, x: str) -> str:
    """The quotient of two series next to zero, and by the exponential elsewhere."""
    square = let(f"{x} * {x}")
    odd = _polynomial(square, [1 / math.factorial(2 * k + 1) for k in reversed(range(8))])
    even = _polynomial(square, [1 / math.factorial(2 * k) for k in reversed(range(9))])
    near = let(f"{x} * ({odd} / {even})")
    falling = let(f"tl.exp(-2.0 * tl.abs({x}))")
    far = let(f"(1.0 - {falling}) / (1.0 + {falling})")
    far = f"tl.where({x} < 0.0, -{far}, {far})"
    return f"tl.where(tl.abs({x}) < 0.5, {near}, {far})"


def _softplus(let: Let, x: str) -> str:
    """``max(x, 0) + log1p(exp(-|x|))``."""
    tail = let(_log1p(let, let(f"tl.exp(-tl.abs({x}))")))
    return f"tl.where({x} < 0.0, 0.0, {x}) + {tail}"


def _plain(text: str) -> Callable[..., str]:
    """An operation that is one expression of its arguments, ``{0}``, ``{1}`` and ``{2}``."""
    return lambda let, *arguments: text.format(*arguments)


# Rounded to the nearest, as on a CPU: Triton's own square root of float32 is not.
SQRT = "(tl.sqrt({0}) if WIDE == tl.float64 else tl.sqrt_rn({0}))"
OPERATIONS: dict[str, Callable[..., str]] = {
    "add": _plain("{0} + {1}"),
    "sub": _plain("{0} - {1}"),
    "mul": _plain("{0} * {1}"),
    "div": _plain("{0} / {1}"),
    "neg": _plain("-{0}"),
    "abs": _plain("tl.abs({0})"),
    "exp": _plain("tl.exp({0})"),
    "log": _plain("tl.log({0})"),
    "log1p": _log1p,
    "sqrt": _plain(SQRT),
    "sin": _plain("tl.sin({0})"),
    "cos": _plain("tl.cos({0})"),
    "erf": _plain("tl.erf({0})"),
    "tanh": _tanh,
    "sigmoid": _plain("1.0 / (1.0 + tl.exp(-{0}))"),
    "softplus": _softplus,
    "where": _plain("tl.where({0}, {1}, {2})"),
    "lt": _plain("{0} < {1}"),
    "le": _plain("{0} <= {1}"),
    "eq": _plain("{0} == {1}"),
    "not": _plain("{0} == 0"),
    "and": _plain("{0} & {1}"),
    "or": _plain("{0} | {1}"),
}
