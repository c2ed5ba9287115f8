"""An exponential that numba can vectorise inside a loop.

The problem: ``np.exp`` in a compiled loop is a C library call per number, 5 to 10 ns each, and a
softmax over neighbours or a SiLU per edge is mostly that. The idea: split ``x = n log 2 + r`` by
adding a large constant, evaluate a polynomial in ``r``, and put ``n`` directly into the exponent's
bits: only additions and products, which LLVM vectorises. The result has the same bits on every
machine, since nothing is reordered.

The result is within 2 units in the last place of the exact value; it is 0 below the smallest normal
number, infinity from less than a factor of two below the largest number on, and NaN for NaN.
"""

# numba passes an intrinsic its first argument itself.

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from staticgraph.jit import KERNEL_OPTIONS


def _same_bits(source: types.Type, wanted: types.Type, llvm: ir.Type) -> Any:
    """Returns an intrinsic that reinterprets the bits of one type as another of the same width."""

    @intrinsic
    def reread(typing: Any, bits: Any) -> Any:
        """Returns the result type and the code generator."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            """Generates the bit cast."""
            return builder.bitcast(arguments[0], llvm)

        return wanted(source), generate

    return reread


_single_of = _same_bits(types.int32, types.float32, ir.FloatType())
_bits_of_single = _same_bits(types.float32, types.int32, ir.IntType(32))
_double_of = _same_bits(types.int64, types.float64, ir.DoubleType())
_bits_of_double = _same_bits(types.float64, types.int64, ir.IntType(64))


# Adding it leaves the rounded integer in the low bits of the sum.
_ROUND32, _ROUND64 = np.float32(1.5 * 2**23), 1.5 * 2**52
_LOG2E32, _LOG2E64 = np.float32(math.log2(math.e)), math.log2(math.e)
# log 2 in two parts, the first with enough trailing zero bits for an exact product with n (Cody and
# Waite).
_HIGH32, _LOW32 = np.float32(0.693359375), np.float32(-2.12194440e-4)
_HIGH64, _LOW64 = 6.93145751953125e-1, 1.42860682030941723212e-6
_LEAST32, _MOST32 = np.float32(-87.33654), np.float32(88.37626)
_LEAST64, _MOST64 = -708.3964185322641, 709.4361393
_ZERO32, _INF32 = np.float32(0), np.float32(np.inf)
_C32 = tuple(np.float32(1 / math.factorial(k)) for k in range(8))
_A0, _A1, _A2, _A3, _A4, _A5, _A6, _A7 = _C32
_C64 = tuple(1 / math.factorial(k) for k in range(14))
_B0, _B1, _B2, _B3, _B4, _B5, _B6, _B7, _B8, _B9, _B10, _B11, _B12, _B13 = _C64


def exp(x: Any) -> Any:
    """Returns ``e ** x`` of a float32 or float64 scalar, inside compiled loops."""
    return np.exp(x)


@overload(exp, jit_options=cast(Any, KERNEL_OPTIONS), inline="never")
def _exp(x: Any) -> Any:
    if x == types.float32:

        def single(x: Any) -> Any:
            """Computes the exponential of a float32."""
            shifted = x * _LOG2E32 + _ROUND32
            n = shifted - _ROUND32
            r = (x - n * _HIGH32) - n * _LOW32
            p = _A7
            p = p * r + _A6
            p = p * r + _A5
            p = p * r + _A4
            p = p * r + _A3
            p = p * r + _A2
            p = p * r + _A1
            p = p * r + _A0
            power = _single_of(np.int32((_bits_of_single(shifted) + np.int32(127)) << 23))
            y = p * power
            y = _ZERO32 if x < _LEAST32 else y
            return _INF32 if x > _MOST32 else y

        return single

    def double(x: Any) -> Any:
        """Computes the exponential of a float64."""
        shifted = x * _LOG2E64 + _ROUND64
        n = shifted - _ROUND64
        r = (x - n * _HIGH64) - n * _LOW64
        p = _B13
        p = p * r + _B12
        p = p * r + _B11
        p = p * r + _B10
        p = p * r + _B9
        p = p * r + _B8
        p = p * r + _B7
        p = p * r + _B6
        p = p * r + _B5
        p = p * r + _B4
        p = p * r + _B3
        p = p * r + _B2
        p = p * r + _B1
        p = p * r + _B0
        power = _double_of((_bits_of_double(shifted) + 1023) << 52)
        y = p * power
        y = 0.0 if x < _LEAST64 else y
        return np.inf if x > _MOST64 else y

    return double
