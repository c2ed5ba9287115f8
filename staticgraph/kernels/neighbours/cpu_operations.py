"""The operations of programs in LLVM's vector instructions, for a CPU.

Every operation gets numbers or vectors of any length and gives the same bits for every length: sums
are not reordered, and products are fused with sums only where that is written, as ``fma``. So a row
has the same result whatever its place among the columns and whichever thread computes it.

The exponential is within 2 units in the last place of the exact value, the logarithm within 3, the
hyperbolic tangent within 4; sine, cosine and the error function are the C library's, number by
number.
"""

# llvmlite is not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir


class Numbers:
    """Writes operations of floats of one type, single or in vectors.

    Attributes:
        builder: where they are written.
        double: whether the floats are float64.
    """

    def __init__(self, builder: ir.IRBuilder, double: bool) -> None:
        self.builder: ir.IRBuilder = builder
        self.double: bool = double

    @staticmethod
    def type(like: Any, element: Any) -> Any:
        """The type of as many elements as ``like`` has."""
        kind = like.type
        return ir.VectorType(element, kind.count) if isinstance(kind, ir.VectorType) else element

    def constant(self, like: Any, number: float, element: Any = None) -> Any:
        """A number, or a vector of it, as long as ``like``."""
        real = ir.DoubleType() if self.double else ir.FloatType()
        kind = self.type(like, real if element is None else element)
        if isinstance(kind, ir.VectorType):
            return ir.Constant(kind, [number] * kind.count)
        return ir.Constant(kind, number)

    def bits(self, value: Any) -> Any:
        """The bits of floats."""
        return self.builder.bitcast(value, self.type(value, ir.IntType(64 if self.double else 32)))

    def of_bits(self, bits: Any) -> Any:
        """Floats of these bits."""
        real = ir.DoubleType() if self.double else ir.FloatType()
        return self.builder.bitcast(bits, self.type(bits, real))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """``a * b + c``, rounded once."""
        name = f"llvm.fma.{_suffix(a.type)}"
        return self.call(name, a, b, c)

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls an intrinsic or a function of C, of arguments of one type."""
        kind = arguments[0].type
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [kind] * len(arguments)), name)
        return self.builder.call(function, arguments)

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """Chooses element by element."""
        return self.builder.select(condition, yes, no)

    def less(self, a: Any, b: Any) -> Any:
        """``a < b``; false for NaN."""
        return self.builder.fcmp_ordered("<", a, b)

    def polynomial(self, x: Any, coefficients: Any) -> Any:
        """The polynomial of these coefficients, the highest first."""
        value = self.constant(x, coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.fma(value, x, self.constant(x, coefficient))
        return value

    def exp(self, x: Any) -> Any:
        """``x = n log 2 + r``, a polynomial in ``r``, and ``n`` in the exponent's bits; 0 below the
        smallest normal number."""
        b, (mantissa, bias, terms, low, high) = self.builder, _EXP[self.double]
        shift = self.constant(x, 1.5 * 2**mantissa)
        shifted = self.fma(x, self.constant(x, math.log2(math.e)), shift)
        n = b.fneg(b.fsub(shifted, shift))
        r = self.fma(n, self.constant(x, _LOG2[self.double][0]), x)
        r = self.fma(n, self.constant(x, _LOG2[self.double][1]), r)
        p = self.polynomial(r, [1 / math.factorial(k) for k in reversed(range(terms))])
        bits = self.bits(shifted)
        kind = bits.type.element if isinstance(bits.type, ir.VectorType) else bits.type
        power = b.add(bits, self.constant(x, bias, kind))
        y = b.fmul(p, self.of_bits(b.shl(power, self.constant(x, mantissa, kind))))
        y = self.select(self.less(x, self.constant(x, low)), self.constant(x, 0.0), y)
        return self.select(self.less(self.constant(x, high), x), self.constant(x, math.inf), y)

    def log(self, x: Any) -> Any:
        """``x = 2^n m`` with ``m`` next to one, and the series of the area tangent."""
        b = self.builder
        mantissa, _, _, _, _ = _EXP[self.double]
        kind = ir.IntType(64 if self.double else 32)
        tiny = self.less(x, self.constant(x, 2.0**-1022 if self.double else 2.0**-126))
        scaled = b.fmul(x, self.constant(x, 2.0**mantissa))
        bits = self.bits(self.select(tiny, scaled, x))
        root = 0x3FE6A09E667F3BCD if self.double else 0x3F3504F3
        n = b.ashr(b.sub(bits, self.constant(x, root, kind)), self.constant(x, mantissa, kind))
        m = self.of_bits(b.sub(bits, b.shl(n, self.constant(x, mantissa, kind))))
        whole = b.sitofp(n, x.type)
        less = self.constant(x, float(mantissa))
        whole = self.select(tiny, b.fsub(whole, less), whole)
        f = b.fsub(m, self.constant(x, 1.0))
        s = b.fdiv(f, b.fadd(f, self.constant(x, 2.0)))
        z = b.fmul(s, s)
        terms = 11 if self.double else 5
        series = self.polynomial(z, [2 / (2 * k + 3) for k in reversed(range(terms))])
        # log(m) = 2 s + s^3 series = f - s (f - z series)
        gap = b.fsub(f, b.fmul(z, series))
        small = self.fma(whole, self.constant(x, _LOG2[self.double][1]), b.fneg(b.fmul(s, gap)))
        y = self.fma(whole, self.constant(x, _LOG2[self.double][0]), b.fadd(f, small))
        zero, end = self.constant(x, 0.0), self.constant(x, math.inf)
        y = self.select(self.less(x, end), y, x)  # infinity, and NaN
        y = self.select(b.fcmp_ordered("==", x, zero), self.constant(x, -math.inf), y)
        return self.select(self.less(x, zero), self.constant(x, math.nan), y)

    def log1p(self, x: Any) -> Any:
        """``log(u) x / (u - 1)`` with ``u = 1 + x``, rounded (Kahan)."""
        b, one = self.builder, self.constant(x, 1.0)
        u = b.fadd(x, one)
        y = b.fmul(self.log(u), b.fdiv(x, b.fsub(u, one)))
        y = self.select(b.fcmp_ordered("==", u, one), x, y)
        return self.select(b.fcmp_ordered("==", x, self.constant(x, math.inf)), x, y)

    def tanh(self, x: Any) -> Any:
        """The quotient of two series next to zero, and by the exponential elsewhere."""
        b, one = self.builder, self.constant(x, 1.0)
        y = self.call(f"llvm.fabs.{_suffix(x.type)}", x)
        z = b.fmul(y, y)
        odd = self.polynomial(z, [1 / math.factorial(2 * k + 1) for k in reversed(range(8))])
        even = self.polynomial(z, [1 / math.factorial(2 * k) for k in reversed(range(9))])
        near = b.fdiv(b.fmul(y, odd), even)
        falling = self.exp(b.fmul(y, self.constant(x, -2.0)))
        far = b.fdiv(b.fsub(one, falling), b.fadd(one, falling))
        value = self.select(self.less(y, self.constant(x, 0.5)), near, far)
        return self.call(f"llvm.copysign.{_suffix(x.type)}", value, x)

    def sigmoid(self, x: Any) -> Any:
        """``1 / (1 + exp(-x))``."""
        b, one = self.builder, self.constant(x, 1.0)
        return b.fdiv(one, b.fadd(one, self.exp(b.fneg(x))))

    def softplus(self, x: Any) -> Any:
        """``max(x, 0) + log1p(exp(-|x|))``."""
        b, zero = self.builder, self.constant(x, 0.0)
        y = self.call(f"llvm.fabs.{_suffix(x.type)}", x)
        above = self.select(self.less(x, zero), zero, x)
        return b.fadd(above, self.log1p(self.exp(b.fneg(y))))

    def library(self, name: str, x: Any) -> Any:
        """A function of C, number by number."""
        name = name if self.double else f"{name}f"
        if not isinstance(x.type, ir.VectorType):
            return self.call(name, x)
        value = x
        for lane in range(x.type.count):
            position = ir.Constant(ir.IntType(32), lane)
            number = self.call(name, self.builder.extract_element(x, position))
            value = self.builder.insert_element(value, number, position)
        return value


# By float64 or not: bits of the mantissa, bias of the exponent, terms of the series, and where an
# exponential is 0 and infinite.
_EXP = {
    False: (23, 127, 8, -87.33654, 88.37626),
    True: (52, 1023, 14, -708.3964185322641, 709.4361393),
}
# log 2 in two parts, the first with enough trailing zero bits for an exact product with n (Cody and
# Waite).
_LOG2 = {False: (0.693359375, -2.12194440e-4), True: (6.93145751953125e-1, 1.42860682030941723e-6)}


def _suffix(kind: Any) -> str:
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    name = "f64" if isinstance(element, ir.DoubleType) else "f32"
    return f"v{kind.count}{name}" if isinstance(kind, ir.VectorType) else name


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda n, a, b: n.builder.fadd(a, b),
    "sub": lambda n, a, b: n.builder.fsub(a, b),
    "mul": lambda n, a, b: n.builder.fmul(a, b),
    "div": lambda n, a, b: n.builder.fdiv(a, b),
    "neg": lambda n, a: n.builder.fneg(a),
    "abs": lambda n, a: n.call(f"llvm.fabs.{_suffix(a.type)}", a),
    "exp": Numbers.exp,
    "log": Numbers.log,
    "log1p": Numbers.log1p,
    "sqrt": lambda n, a: n.call(f"llvm.sqrt.{_suffix(a.type)}", a),
    "sin": lambda n, a: n.library("sin", a),
    "cos": lambda n, a: n.library("cos", a),
    "erf": lambda n, a: n.library("erf", a),
    "tanh": Numbers.tanh,
    "sigmoid": Numbers.sigmoid,
    "softplus": Numbers.softplus,
    "where": Numbers.select,
    "lt": Numbers.less,
    "le": lambda n, a, b: n.builder.fcmp_ordered("<=", a, b),
    "eq": lambda n, a, b: n.builder.fcmp_ordered("==", a, b),
    "not": lambda n, a: n.builder.not_(a),
    "and": lambda n, a, b: n.builder.and_(a, b),
    "or": lambda n, a, b: n.builder.or_(a, b),
}
