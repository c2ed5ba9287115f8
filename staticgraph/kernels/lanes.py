"""Sums and products of rows in vector lanes, for loops that LLVM leaves scalar.

The problem: a sum may not be reordered (:mod:`staticgraph.jit`), so a loop that sums a row
stays scalar, and the product of a row with a small matrix keeps its sums in memory; attention is
nothing but these. The idea: make the order part of the function. ``LANES`` sums run side by side,
in explicit vector instructions, and are then added in pairs: the same order everywhere, whatever a
machine's vector width. One product covers attention's five: scores, their gradients, and the
gradients of queries, keys and values are all ``weights @ matrix``.

Arrays are flat and contiguous, and a row is given by the offset of its first number. Nothing is
checked: callers are responsible for the layout of the arrays.
"""

# numba's typing and code generation are not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Numbers per vector, in either precision; the processor may split a vector into parts.
LANES = 16
FUSED = ("contract",)
_PLACE = ir.IntType(32)


class Vectors:
    """Emits vector instructions for one element type, in the code of one function.

    Attributes:
        number, kind: the types of an element and of a vector.
        bytes: size of an element.
        zero: a vector of zeros.
    """

    def __init__(self, context: Any, builder: Any, kind: types.Type) -> None:
        self.context: Any = context
        self.builder: Any = builder
        self.number: Any = context.get_value_type(kind)
        self.kind: Any = ir.VectorType(self.number, LANES)
        self.bytes: int = context.get_abi_sizeof(self.number)
        self.zero: Any = ir.Constant(self.kind, [0.0] * LANES)

    def start(self, array_type: Any, array: Any, place: Any) -> Any:
        """Returns the pointer to an element of an array."""
        data = self.context.make_array(array_type)(self.context, self.builder, array).data
        return self.builder.gep(data, [place])

    def load(self, start: Any, place: Any) -> Any:
        """Loads the vector that begins at ``start + place``."""
        at = self.builder.gep(start, [place])
        value = self.builder.load(self.builder.bitcast(at, self.kind.as_pointer()))
        value.align = self.bytes
        return value

    def store(self, value: Any, start: Any, place: Any) -> None:
        """Stores a vector at ``start + place``."""
        at = self.builder.gep(start, [place])
        stored = self.builder.store(value, self.builder.bitcast(at, self.kind.as_pointer()))
        stored.align = self.bytes

    def spread(self, number: Any) -> Any:
        """Broadcasts one number to all lanes."""
        first = self.builder.insert_element(self.zero, number, _PLACE(0))
        everywhere = ir.Constant(ir.VectorType(_PLACE, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, self.zero, everywhere)

    def joined(self, value: Any, join: Callable[[Any, Any], Any]) -> Any:
        """Reduces all lanes to one number: halves are joined until one lane is left."""
        count = LANES
        while count > 1:
            count //= 2
            halves = (
                ir.Constant(ir.VectorType(_PLACE, count), list(range(first, first + count)))
                for first in (0, count)
            )
            low, high = (self.builder.shuffle_vector(value, value, half) for half in halves)
            value = join(low, high)
        return self.builder.extract_element(value, _PLACE(0))

    def sum(self, left: Any, right: Any) -> Any:
        """Adds two numbers, or two vectors lane by lane."""
        return self.builder.fadd(left, right)

    def larger(self, best: Any, value: Any) -> Any:
        """Returns the maximum lane by lane; NaN if either operand is NaN."""
        more = self.builder.fcmp_ordered(">", value, best)
        takes = self.builder.or_(more, self.builder.fcmp_unordered("uno", value, value))
        return self.builder.select(takes, value, best)


def _total(typing: Any, values: Any, first: Any, count: Any) -> Any:
    """Implements ``total(values, first, count)``: the sum of a row of any length."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Generates the sums of each lane, their sum, and that of the numbers after them."""
        array, place, size = arguments
        vectors = Vectors(context, builder, values.dtype)
        start = vectors.start(values, array, place)
        nothing, one, lanes = (ir.Constant(size.type, n) for n in (0, 1, LANES))
        whole = builder.and_(size, ir.Constant(size.type, -LANES))
        sums = cgutils.alloca_once_value(builder, vectors.zero)
        rest = cgutils.alloca_once_value(builder, ir.Constant(vectors.number, 0.0))
        with cgutils.for_range_slice(builder, nothing, whole, lanes) as (k, _):
            builder.store(vectors.sum(builder.load(sums), vectors.load(start, k)), sums)
        with cgutils.for_range_slice(builder, whole, size, one) as (k, _):
            term = builder.load(builder.gep(start, [k]))
            builder.store(vectors.sum(builder.load(rest), term), rest)
        return vectors.sum(vectors.joined(builder.load(sums), vectors.sum), builder.load(rest))

    return values.dtype(values, types.intp, types.intp), generate


def _largest(typing: Any, values: Any, first: Any, count: Any) -> Any:
    """Implements ``largest(values, first, count)``: the maximum of a row.

    The length of the row is a nonzero multiple of LANES. The result is NaN if any value is.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Generates the maximum of each lane, then over the lanes."""
        array, place, size = arguments
        vectors = Vectors(context, builder, values.dtype)
        start = vectors.start(values, array, place)
        nothing, lanes = (ir.Constant(size.type, n) for n in (0, LANES))
        best = cgutils.alloca_once_value(builder, vectors.load(start, nothing))
        with cgutils.for_range_slice(builder, lanes, size, lanes) as (k, _):
            most = vectors.larger(builder.load(best), vectors.load(start, k))
            builder.store(most, best)
        return vectors.joined(builder.load(best), vectors.larger)

    return values.dtype(values, types.intp, types.intp), generate


def _combine(
    typing: Any,
    weights: Any,
    at: Any,
    step: Any,
    matrix: Any,
    first: Any,
    stride: Any,
    count: Any,
    out: Any,
    place: Any,
    columns: Any,
    start: Any,
    origin: Any,
) -> Any:
    """Implements ``out[c] = start[c] + sum over k < count of weights[k] * matrix[k, c]``.

    ``weights[k]`` are ``step`` numbers apart, and rows of the matrix ``stride``. The rows of
    ``out``, ``start`` and the matrix, which begin at ``place``, ``origin`` and ``first``, have
    ``columns`` numbers, a multiple of LANES. ``start`` may be ``out``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Generates the sums of LANES columns at a time over all rows, kept in registers."""
        vectors = Vectors(context, builder, out.dtype)
        scalars = vectors.start(weights, *arguments[:2])
        rows = vectors.start(matrix, arguments[3], arguments[4])
        target = vectors.start(out, arguments[7], arguments[8])
        before = vectors.start(start, arguments[10], arguments[11])
        step, stride, count, columns = (arguments[n] for n in (2, 5, 6, 9))
        nothing, lanes = (ir.Constant(columns.type, n) for n in (0, LANES))
        sums = cgutils.alloca_once_value(builder, vectors.zero)
        with cgutils.for_range_slice(builder, nothing, columns, lanes) as (c, _):
            builder.store(vectors.load(before, c), sums)
            block = builder.gep(rows, [c])
            with cgutils.for_range(builder, count) as row:
                weight = builder.load(builder.gep(scalars, [builder.mul(row.index, step)]))
                values = vectors.load(block, builder.mul(row.index, stride))
                part = builder.fmul(vectors.spread(weight), values, flags=FUSED)
                builder.store(builder.fadd(builder.load(sums), part, flags=FUSED), sums)
            vectors.store(builder.load(sums), target, c)
        return context.get_dummy_value()

    number = types.intp
    row, table = (weights, number, number), (matrix, number, number, number)
    return types.void(*row, *table, out, number, number, start, number), generate


# Typed as Any: kernels are checked by numba's typing rules.
total: Any = intrinsic(_total)
largest: Any = intrinsic(_largest)
combine: Any = intrinsic(_combine)
