"""Tiles of a matrix product, kept in registers from the first term to the last.

The problem: the products of a small batch are small themselves, ``[1752, 64]`` with ``[64, 64]``. A
library spends as long on preparing such a product as on the arithmetic, and for the gradient of a
weight it first copies both operands. The idea: four rows by one or four vectors of columns are
accumulated at once, with each number of the left operand broadcast over a vector of the right one.
Operands are given with strides, so nothing is transposed.

A result is the sum over ``k`` in order, whatever tile it is in.
"""

# numba's typing and code generation are not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from staticgraph.kernels.lanes import FUSED, LANES, Vectors

ROWS = 4
# Vectors side by side in a wide tile: sixteen accumulators, enough to hide the latency of one.
SIDE_BY_SIDE = 4
WIDE = SIDE_BY_SIDE * LANES


def _tile_of(vectors_of_columns: int) -> Any:
    def tile(
        typing: Any,
        left: Any,
        at: Any,
        step: Any,
        gap: Any,
        right: Any,
        first: Any,
        stride: Any,
        count: Any,
        out: Any,
        place: Any,
        pitch: Any,
        adds: Any,
    ) -> Any:
        """Returns the type of a call of the tile, which returns nothing, and its code generator."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            """Generates the tile, written to ``out``."""
            _generate(context, builder, out.dtype, vectors_of_columns, arguments, signature.args)
            return context.get_dummy_value()

        number = types.intp
        operand = (left, number, number, number), (right, number, number)
        written = out, number, number, types.boolean
        return types.void(*operand[0], *operand[1], number, *written), generate

    return intrinsic(tile)


def _generate(
    context: Any, builder: Any, kind: Any, columns: int, arguments: Any, given: Any
) -> None:
    vectors = Vectors(context, builder, kind)
    step, gap, stride, count, pitch = (arguments[n] for n in (2, 3, 6, 7, 10))
    left = vectors.start(given[0], arguments[0], arguments[1])
    right = vectors.start(given[4], arguments[4], arguments[5])
    out = vectors.start(given[8], arguments[8], arguments[9])

    def times(distance: Any, number: int) -> Any:
        """Generates a stride times a constant."""
        return builder.mul(distance, ir.Constant(distance.type, number))

    lanes = [ir.Constant(step.type, n * LANES) for n in range(columns)]
    rows = [builder.gep(left, [times(gap, n)]) for n in range(ROWS)]
    sums = [[cgutils.alloca_once_value(builder, vectors.zero) for _ in lanes] for _ in rows]
    with cgutils.for_range(builder, count) as k:
        row, place = builder.gep(right, [builder.mul(k.index, stride)]), builder.mul(k.index, step)
        values = [vectors.load(row, lane) for lane in lanes]
        for start, kept in zip(rows, sums, strict=True):
            weight = vectors.spread(builder.load(builder.gep(start, [place])))
            for one, value in zip(kept, values, strict=True):
                part = builder.fmul(weight, value, flags=FUSED)
                builder.store(builder.fadd(builder.load(one), part, flags=FUSED), one)
    for number, kept in enumerate(sums):
        for one, lane in zip(kept, lanes, strict=True):
            to = builder.add(times(pitch, number), lane)
            before = builder.select(arguments[11], vectors.load(out, to), vectors.zero)
            vectors.store(builder.fadd(builder.load(one), before), out, to)


# ``tile(left, at, step, gap, right, first, stride, count, out, place, pitch, adds)``:
# ``out[r, c] = sum over k < count of left[r, k] * right[k, c]`` for ROWS rows and LANES columns, or
# WIDE of them, added to ``out`` if ``adds``. The left operand begins at ``at``, with row stride
# ``gap`` and stride ``step`` along ``k``; the right one begins at ``first`` with row stride
# ``stride``; ``out`` begins at ``place`` with row stride ``pitch``. Typed as Any for kernels.
tile: Any = _tile_of(1)
wide_tile: Any = _tile_of(SIDE_BY_SIDE)
