"""Loops, vectors and indices, of which all code of programs for a CPU is made."""

# llvmlite is not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from llvmlite import ir

from staticgraph.kernels.neighbours.program import Shape

LONG: Any = ir.IntType(64)
SHORT: Any = ir.IntType(32)
BYTE: Any = ir.IntType(8)
NOTHING: Any = ir.VoidType()
Index = tuple[int, ...]
Block = tuple[Index, int]  # where a vector begins, and its length


def columns(size: int, lanes: int) -> Iterator[tuple[int, int]]:
    """First column and length of each vector of a row: powers of two, ``lanes`` at the most."""
    column = 0
    while column < size:
        length = min(lanes, 1 << (size - column).bit_length() - 1)
        yield column, length
        column += length


def blocks(shape: Shape, lanes: int) -> list[Block]:
    """The vectors of a row of more dimensions, along the last one."""
    if not shape:
        return [((), 1)]
    leading = product(*map(range, shape[:-1]))
    return [((*indices, first), n) for indices in leading for first, n in columns(shape[-1], lanes)]


@contextmanager
def loop(b: ir.IRBuilder, entry: ir.IRBuilder, begin: Any, end: Any) -> Iterator[Any]:
    """Writes a loop over numbers; afterwards the builder is behind it."""
    counter = entry.alloca(LONG)
    b.store(begin, counter)
    head, body, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
    b.branch(head)
    b.position_at_end(head)
    index = b.load(counter)
    b.cbranch(b.icmp_signed("<", index, end), body, done)
    b.position_at_end(body)
    yield index
    b.store(b.add(index, LONG(1)), counter)
    b.branch(head)
    b.position_at_end(done)


def flat(index: Index, shape: Shape) -> int:
    """The position of an index in a row."""
    position = 0
    for place, size in zip(index, shape, strict=True):
        position = position * size + place
    return position


def unflat(position: int, shape: Shape) -> Index:
    """The index of a position in a row."""
    index: list[int] = []
    for size in reversed(shape):
        position, place = divmod(position, size)
        index.append(place)
    return tuple(reversed(index))


def count(value: Any) -> int:
    """How many numbers a vector has; one of a number."""
    return value.type.count if isinstance(value.type, ir.VectorType) else 1


def lane(b: ir.IRBuilder, value: Any, at: int) -> Any:
    """One number of a vector."""
    is_vector = isinstance(value.type, ir.VectorType)
    return b.extract_element(value, SHORT(at)) if is_vector else value


def spread(b: ir.IRBuilder, value: Any, lanes: int) -> Any:
    """A number in all lanes of a vector."""
    if lanes == 1:
        return value
    kind = ir.VectorType(value.type, lanes)
    nothing = ir.Constant(kind, ir.Undefined)
    if isinstance(value, ir.Constant):
        return ir.Constant(kind, [value.constant] * lanes)
    vector = b.insert_element(nothing, value, SHORT(0))
    return b.shuffle_vector(vector, nothing, ir.Constant(ir.VectorType(SHORT, lanes), [0] * lanes))


def joined(b: ir.IRBuilder, value: Any) -> Any:
    """The sum of all lanes: halves are added until one is left."""
    lanes = count(value)
    if lanes == 1:
        return value
    while lanes > 1:
        lanes //= 2
        halves = (
            ir.Constant(ir.VectorType(SHORT, lanes), list(range(first, first + lanes)))
            for first in (0, lanes)
        )
        low, high = (b.shuffle_vector(value, value, half) for half in halves)
        value = b.fadd(low, high)
    return lane(b, value, 0)


def inverse(b: ir.IRBuilder, number: Any, real: Any) -> Any:
    """One over a number, one for none."""
    least = b.select(b.icmp_signed("<", number, LONG(1)), LONG(1), number)
    return b.fdiv(ir.Constant(real, 1.0), b.sitofp(least, real))
