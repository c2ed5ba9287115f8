"""Positions in a row as sums of multiples of a tile's axes.

A Triton kernel holds a row as a tile, and reads an operand at a position that depends on the tile's
axes. Views, slices, permutations and broadcasts change no number, so they change that position
alone: it stays a sum of multiples of axes as long as a view only splits or joins dimensions that
are next to each other, and becomes a quotient or a remainder otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from staticgraph.kernels.neighbours.program import Shape


class Axis(NamedTuple):
    """A dimension of tiles: its size, and a number that tells axes of one size apart."""

    size: int
    number: int

    @property
    def name(self) -> str:
        """The variable that holds the positions along the axis."""
        return "lane" if self == LANE else f"axis_{self.size}_{self.number}"

    @property
    def block(self) -> int:
        """The size in a tile: a power of two, as Triton requires."""
        return 1 << (self.size - 1).bit_length()


# The edges of a node that the loop takes at once; how many is said when a kernel is launched.
LANE = Axis(1, -1)


class Quotient(NamedTuple):
    """An index divided by a number, rounded down, or the remainder."""

    inside: Index
    divisor: int
    remainder: bool


Term = Axis | Quotient
# Rows of unequal length that an axis is cut into one by one, each with code of its own.
MOST_ROWS = 8


class Cut(NamedTuple):
    """A position where an axis is cut in two, or the length of the rows that it is cut into."""

    axis: Axis
    at: int
    into_rows: bool = False


class Index(NamedTuple):
    """``constant`` plus the sum of each term times its factor, which is positive."""

    terms: tuple[tuple[Term, int], ...] = ()
    constant: int = 0

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes that the index depends on."""
        names = ({term} if isinstance(term, Axis) else term.inside.axes for term, _ in self.terms)
        return frozenset().union(*names)

    @property
    def is_affine(self) -> bool:
        """Whether the index has no quotient."""
        return all(isinstance(term, Axis) for term, _ in self.terms)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value that the index may have."""
        return self.constant, self.constant + sum(
            factor * _largest(term) for term, factor in self.terms
        )

    def plus(self, other: Index) -> Index:
        """The sum of two indices."""
        factors: dict[Term, int] = dict(self.terms)
        for term, factor in other.terms:
            factors[term] = factors.get(term, 0) + factor
        constant = self.constant + other.constant
        for term in list(factors):
            if isinstance(term, Quotient) and term.remainder:
                factor = factors[term]
                whole = term._replace(remainder=False)
                if factors.get(whole) == factor * term.divisor:  # q d + r is the whole index
                    del factors[whole], factors[term]
                    return Index(tuple(factors.items()), constant).plus(term.inside.times(factor))
        return Index(tuple(sorted(factors.items(), key=repr)), constant)

    def times(self, factor: int) -> Index:
        """The index times a positive number."""
        return Index(
            tuple((term, old * factor) for term, old in self.terms), self.constant * factor
        )

    def divided(self, divisor: int) -> tuple[Index, Index]:
        """The quotient, rounded down, and the remainder."""
        whole, constant = divmod(self.constant, divisor)
        multiples = tuple((t, f // divisor) for t, f in self.terms if f % divisor == 0)
        rest = Index(tuple((t, f) for t, f in self.terms if f % divisor), constant)
        if rest.bounds[1] >= divisor:
            parts = (Index(((Quotient(rest, divisor, way), 1),)) for way in (False, True))
            quotient, rest = parts
            return Index(multiples, whole).plus(quotient), rest
        return Index(multiples, whole), rest

    def put(self, axis: Axis, index: Index) -> Index:
        """The index with another one in place of an axis."""
        total = Index((), self.constant)
        for term, factor in self.terms:
            value = Index(((term, 1),))
            if term == axis:
                value = index
            elif isinstance(term, Quotient):
                value = term.inside.put(axis, index).divided(term.divisor)[term.remainder]
            total = total.plus(value.times(factor))
        return total

    def cut(self, boundary: int) -> Cut | None:
        """A cut after which the index is below ``boundary`` on one side, or nearer to it; None if
        there is none."""
        if not self.is_affine:
            return self.rows()
        axis, factor = max(self.terms, key=lambda term: term[1])
        assert isinstance(axis, Axis)
        return Cut(axis, min(-((self.constant - boundary) // factor), axis.size - 1))

    def rows(self) -> Cut | None:
        """A cut at the end of a row, or into rows, where a quotient is the number of the row; None
        if there is none."""
        for term, _ in self.terms:
            if not isinstance(term, Quotient) or len(term.inside.terms) != 1:
                continue
            ((axis, factor),) = term.inside.terms
            first = -term.inside.constant % term.divisor
            if not isinstance(axis, Axis) or factor != 1:
                continue
            if first == 0 and axis.size % term.divisor == 0:
                return Cut(axis, term.divisor, into_rows=True)
            if axis.size <= MOST_ROWS * term.divisor:
                return Cut(axis, first or term.divisor)
        return None


def _largest(term: Term) -> int:
    if isinstance(term, Axis):
        return term.size - 1
    most = term.inside.bounds[1]
    return min(most, term.divisor - 1) if term.remainder else most // term.divisor


def along(axis: Axis | None) -> Index:
    """The position along an axis; zero without one."""
    return Index(((axis, 1),)) if axis is not None else Index()


def flat(index: Sequence[Index], shape: Shape) -> Index:
    """The position in a row of this shape, without gaps."""
    total = Index()
    for part, size in zip(index, shape, strict=True):
        total = total.times(size).plus(part)
    return total


def unflat(position: Index, shape: Shape) -> tuple[Index, ...]:
    """The index in a row of this shape of a position in it."""
    index: list[Index] = []
    for size in reversed(shape[1:]):
        position, part = position.divided(size)
        index.append(part)
    return (position, *reversed(index)) if shape else ()
