"""Rows of numbers in the vector unit's lanes, for loops that LLVM leaves one number at a time.

The problem: a sum may not be reordered (:mod:`staticgraph.kernels.jit`), so a loop that adds up a
row stays scalar, and a product of a row with a small matrix keeps its sums in memory; attention is
nothing but these. The idea: the order is part of the function. ``LANES`` sums run side by side, in
instructions that say so, and are joined in pairs: the same order everywhere, whatever a machine's
vectors hold. One product serves attention's five: scores, their slopes, and what queries, keys
and values get are all ``weights @ matrix``.

Arrays are flat and contiguous, and a row is told by the place of its first number. Nothing is
checked: whoever calls these has laid out the arrays.
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

# Numbers that a vector holds here, of either precision; the processor may take it in parts.
LANES = 16
FUSED = ("contract",)
_PLACE = ir.IntType(32)


class Vectors:
    """Vectors of one kind of number, in the code of one function.

    Attributes:
        number, kind: the types of a number and of a vector.
        bytes: of a number.
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
        """Where a number of an array is."""
        data = self.context.make_array(array_type)(self.context, self.builder, array).data
        return self.builder.gep(data, [place])

    def load(self, start: Any, place: Any) -> Any:
        """A vector of the numbers from ``place`` on behind ``start``."""
        at = self.builder.gep(start, [place])
        value = self.builder.load(self.builder.bitcast(at, self.kind.as_pointer()))
        value.align = self.bytes
        return value

    def store(self, value: Any, start: Any, place: Any) -> None:
        """Writes a vector from ``place`` on behind ``start``."""
        at = self.builder.gep(start, [place])
        stored = self.builder.store(value, self.builder.bitcast(at, self.kind.as_pointer()))
        stored.align = self.bytes

    def spread(self, number: Any) -> Any:
        """One number in all lanes."""
        first = self.builder.insert_element(self.zero, number, _PLACE(0))
        everywhere = ir.Constant(ir.VectorType(_PLACE, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, self.zero, everywhere)

    def joined(self, value: Any, join: Callable[[Any, Any], Any]) -> Any:
        """One number of all lanes: halves are joined until one is left."""
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
        """Lane by lane."""
        return self.builder.fadd(left, right)

    def larger(self, best: Any, value: Any) -> Any:
        """NaN where one of them is."""
        more = self.builder.fcmp_ordered(">", value, best)
        takes = self.builder.or_(more, self.builder.fcmp_unordered("uno", value, value))
        return self.builder.select(takes, value, best)


def _added(context: Any, builder: Any, kind: types.Type, rows: Any, size: Any) -> Any:
    """The sum of the products of rows' numbers; ``rows`` are pairs of an array and a place."""
    vectors = Vectors(context, builder, kind)
    starts = [vectors.start(*row) for row in rows]

    def add(values: list[Any], sums: Any) -> None:
        """Code: the product of a value of each row, added to the sums at a pointer."""
        term = values[0]
        for value in values[1:]:
            term = builder.fmul(term, value, flags=FUSED)
        builder.store(builder.fadd(builder.load(sums), term, flags=FUSED), sums)

    nothing, one, lanes = (ir.Constant(size.type, n) for n in (0, 1, LANES))
    whole = builder.and_(size, ir.Constant(size.type, -LANES))
    sums = cgutils.alloca_once_value(builder, vectors.zero)
    rest = cgutils.alloca_once_value(builder, ir.Constant(vectors.number, 0.0))
    with cgutils.for_range_slice(builder, nothing, whole, lanes) as (k, _):
        add([vectors.load(start, k) for start in starts], sums)
    with cgutils.for_range_slice(builder, whole, size, one) as (k, _):
        add([builder.load(builder.gep(start, [k])) for start in starts], rest)
    return builder.fadd(vectors.joined(builder.load(sums), vectors.sum), builder.load(rest))


def _total(typing: Any, values: Any, first: Any, count: Any) -> Any:
    """``total(values, first, count)``: the sum of a row of any length."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Code: the sum of one row."""
        array, place, size = arguments
        return _added(context, builder, values.dtype, [(values, array, place)], size)

    return values.dtype(values, types.intp, types.intp), generate


def _dot(typing: Any, left: Any, i: Any, right: Any, j: Any, count: Any) -> Any:
    """``dot(left, i, right, j, count)``: the sum of the products of two rows of any length."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Code: the sum of the products of two rows."""
        one, i, other, j, size = arguments
        return _added(context, builder, left.dtype, [(left, one, i), (right, other, j)], size)

    given = left, types.intp, right, types.intp, types.intp
    return left.dtype(*given), generate


def _largest(typing: Any, values: Any, first: Any, count: Any) -> Any:
    """``largest(values, first, count)``: of a row whose length is a multiple of LANES, one at
    least. A NaN is larger than all."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Code: the largest number of each lane, then of the lanes."""
        array, place, size = arguments
        vectors = Vectors(context, builder, values.dtype)
        start = vectors.start(values, array, place)
        nothing, lanes = (ir.Constant(size.type, n) for n in (0, LANES))
        found = cgutils.alloca_once_value(builder, vectors.load(start, nothing))
        with cgutils.for_range_slice(builder, lanes, size, lanes) as (k, _):
            most = vectors.larger(builder.load(found), vectors.load(start, k))
            builder.store(most, found)
        return vectors.joined(builder.load(found), vectors.larger)

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
    """``out[c] = start[c] + sum over k < count of weights[k] * matrix[k, c]``.

    ``weights[k]`` is ``step`` numbers after the one before, a row of the matrix ``stride``; the
    rows of ``out``, ``start`` and the matrix, which begin at ``place``, ``origin`` and ``first``,
    have ``columns`` numbers, a multiple of LANES. ``start`` may be ``out``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Code: some columns at a time, the sums over all rows in registers."""
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


# Typed for kernels, which are compiled by numba's rules.
total: Any = intrinsic(_total)
dot: Any = intrinsic(_dot)
largest: Any = intrinsic(_largest)
combine: Any = intrinsic(_combine)
