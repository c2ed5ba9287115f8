"""A program: what is computed for every edge, row by row, and how a node's edges are reduced.

A message-passing layer is rows gathered at either end of an edge, from the edge or from a table, a
row-wise expression of them, and reductions over the edges of a node. A program is that as data: it
can be printed, compared and hashed, and code for a CPU and for CUDA is generated from it
(:mod:`staticgraph.kernels.neighbours.cpu`, :mod:`staticgraph.kernels.neighbours.gpu`). Its
derivative is a program, too (:mod:`staticgraph.kernels.neighbours.derivative`).

Shapes are those of one row: a value ``[E, H, C]`` of all edges has the shape ``(H, C)``. Shapes
broadcast as in torch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

Shape = tuple[int, ...]
# Up to this variance PyG's standard deviation is zero, and has no gradient.
LEAST_VARIANCE = 1e-5
# Where the rows of an operand are: of nodes, read by either end; of edges; of a table that edges
# read by a code; or one row for all.
PLACES = ("source", "target", "edge", "table", "all")
# How a result is made of the edges' values: one row per edge; or reduced over the edges into each
# node, or out of it. `ties` is the number of edges that share a minimum or maximum, and one more
# where that is zero, as torch.scatter_reduce counts them; `softmax` is a sum, weighted by the
# softmax of another value over a node's edges; `table_sum` adds each edge to the row of a table
# that it reads.
SIMPLE = ("sum", "mean", "min", "max", "var", "std", "min_ties", "max_ties")
INTO = (*SIMPLE, "softmax", "logsumexp")
REDUCTIONS = ("rows", *INTO, "source_sum", "table_sum")


class Operand(NamedTuple):
    """Rows that a program reads.

    Attributes:
        place: one of :data:`PLACES`.
        shape: of a row.
        code: for a table, which of the codes of the call edges read it by.
    """

    place: str
    shape: Shape
    code: int = -1


class Value(NamedTuple):
    """One operation of the row-wise expression.

    Attributes:
        operation: a name from :data:`staticgraph.kernels.neighbours.operations.POINTWISE`, or one
            of ``operand``, ``number``, ``share`` (one over the number of edges into the target, at
            least one), ``loop`` (whether both ends are one node), ``view``, ``expand``, ``slice``,
            ``cat``, ``permute`` and ``total``.
        arguments: the places of earlier values.
        shape: of a row.
        options: numbers: the operand's or the constant; first and last column and dimension of a
            slice; the dimension of a concatenation, a permutation's, or those that are summed.
    """

    operation: str
    arguments: tuple[int, ...]
    shape: Shape
    options: tuple[Any, ...] = ()


class Result(NamedTuple):
    """A result: the place of a value, and how it is made of the edges' values.

    Attributes:
        value: place of the value.
        reduction: one of :data:`REDUCTIONS`. Several of :data:`SIMPLE`, joined by ``+``, are side
            by side in the last dimension of one result.
        start: of ``sum``, ``source_sum``, ``softmax`` and ``logsumexp``, the place of the value of
            one more term, which belongs to the node itself: rows of nodes, of either end, are read
            at the node that the result is of. -1 for none.
        weight: of ``softmax``, the place of the value whose softmax weighs the edges; its shape is
            that of the weighed value without some of the last dimensions.
        start_weight: the weight of ``start``.
        table: of ``table_sum``, the number of the operand whose rows are meant.
    """

    value: int
    reduction: str
    start: int = -1
    weight: int = -1
    start_weight: int = -1
    table: int = -1

    @property
    def reductions(self) -> list[str]:
        """Each of them."""
        return self.reduction.split("+")

    @property
    def values(self) -> list[int]:
        """The places of all values that it is made of."""
        return [place for place in (self.value, *self[2:5]) if place >= 0]

    def moved(self, moved: Callable[[int], int]) -> Result:
        """The same of values at other places."""
        starts = [moved(place) if place >= 0 else place for place in self[2:5]]
        return Result(moved(self.value), self.reduction, *starts, table=self.table)


@dataclass(frozen=True, eq=False)
class Program:
    """Operands, the values that are computed from them, and results; equal by :attr:`key`."""

    operands: tuple[Operand, ...]
    values: tuple[Value, ...]
    results: tuple[Result, ...]

    @cached_property
    def key(self) -> str:
        """A name that equal programs share, in every process."""
        text = repr((self.operands, self.values, self.results))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shape of a row of each result."""
        return [self.shape(result) for result in self.results]

    @cached_property
    def tables(self) -> list[tuple[int, int]]:
        """The numbers of tables, and of the codes that edges read them by."""
        places = enumerate(self.operands)
        return [(number, operand.code) for number, operand in places if operand.place == "table"]

    @cached_property
    def cache(self) -> dict[Any, Any]:
        """What was made of it, for calls to come: derivatives, loops."""
        return {}

    def shape(self, result: Result) -> Shape:
        """The shape of a row of a result."""
        shape, parts = self.values[result.value].shape, len(result.reductions)
        return shape if parts == 1 else (*shape[:-1], parts * shape[-1])

    def taking(self, results: Sequence[Result]) -> Program:
        """The program of these of its results alone; all operands stay."""
        return _pruned(replace(self, results=tuple(results)))

    def __str__(self) -> str:
        lines = []
        for place, (operation, arguments, shape, options) in enumerate(self.values):
            if operation == "operand":
                operand = self.operands[options[0]]
                of = operand.place if operand.code < 0 else f"{operand.place} {operand.code}"
                text = f"{of} operand {options[0]}"
            else:
                text = " ".join([operation, *(f"v{a}" for a in arguments), *map(str, options)])
            lines.append(f"v{place} {list(shape)} = {text}")
        for value, reduction, start, weight, start_weight, table in self.results:
            by = "" if weight < 0 else f" by v{weight}"
            onto = "" if start < 0 else f", and the node's v{start}"
            onto += "" if start_weight < 0 else f" by v{start_weight}"
            onto += "" if table < 0 else f", in the table of operand {table}"
            lines.append(f"{reduction} of v{value}{by}{onto}")
        return "\n".join(lines)


def _pruned(program: Program) -> Program:
    """Drops values that no result reads."""
    needed = {place for result in program.results for place in result.values}
    for place in reversed(range(len(program.values))):
        if place in needed:
            needed.update(program.values[place].arguments)
    moved = {old: new for new, old in enumerate(sorted(needed))}
    values = tuple(
        value._replace(arguments=tuple(moved[argument] for argument in value.arguments))
        for place, value in enumerate(program.values)
        if place in needed
    )
    results = tuple(result.moved(moved.__getitem__) for result in program.results)
    return Program(program.operands, values, results)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that shapes broadcast to.

    Raises:
        ValueError: they do not broadcast.
    """
    rank = max(map(len, shapes))
    sizes = []
    for dim in range(-rank, 0):
        lengths = {shape[dim] for shape in shapes if len(shape) >= -dim} - {1}
        if len(lengths) > 1:
            raise ValueError(f"rows of {' and '.join(map(str, shapes))} do not broadcast")
        sizes.append(lengths.pop() if lengths else 1)
    return tuple(sizes)


class Builder:
    """Writes the values of a program; equal values are written once.

    A place is the number of a value. Python numbers are constants wherever a place is expected of
    :meth:`point`.
    """

    def __init__(self) -> None:
        self.operands: list[Operand] = []
        self.values: list[Value] = []
        self._places: dict[str, int] = {}

    def shape(self, place: int) -> Shape:
        """The shape of a value."""
        return self.values[place].shape

    def _put(self, value: Value) -> int:
        place = self._places.setdefault(repr(value), len(self.values))  # 0.0 and -0.0 are two
        if place == len(self.values):
            self.values.append(value)
        return place

    def operand(self, place: str, shape: Shape, code: int = -1) -> int:
        """Adds an operand, and returns the value that reads it."""
        self.operands.append(Operand(place, shape, code))
        return self._put(Value("operand", (), shape, (len(self.operands) - 1,)))

    def number(self, number: float, shape: Shape = ()) -> int:
        """A constant."""
        return self._put(Value("number", (), shape, (float(number),)))

    def share(self) -> int:
        """One over the number of edges into the target, at least one."""
        return self._put(Value("share", (), ()))

    def loop(self) -> int:
        """Whether an edge goes from a node to itself."""
        return self._put(Value("loop", (), ()))

    def nothing(self, shape: Shape = ()) -> int:
        """The zero of gradients that do not exist: a product with it is nothing again, where that
        with the constant 0.0 may be NaN or a negative zero."""
        return self._put(Value("number", (), shape, (0.0, "nothing")))

    def is_nothing(self, place: int) -> bool:
        """Whether a value is :meth:`nothing`."""
        return self.values[place].options[1:] == ("nothing",)

    def _is_number(self, place: int, number: float) -> bool:
        value = self.values[place]
        return value.operation == "number" and value.options == (number,)

    def point(self, operation: str, *arguments: int | float) -> int:
        """A pointwise operation of values (ints) and constants (floats)."""
        places = [
            self.number(argument) if isinstance(argument, float) else argument
            for argument in arguments
        ]
        shape = broadcast(*(self.shape(place) for place in places))
        if (value := self._trivial(operation, places)) is not None:
            return self.expand(value, shape)
        return self._put(Value(operation, tuple(places), shape))

    def _trivial(self, operation: str, places: list[int]) -> int | None:
        """The operand that a sum with nothing or a product with one is, or nothing."""
        if operation in ("add", "mul"):
            for place, other in (places, places[::-1]):
                if self.is_nothing(other):
                    return place if operation == "add" else other
                if operation == "mul" and self._is_number(other, 1.0):
                    return place
        return places[0] if operation == "sub" and self.is_nothing(places[1]) else None

    def view(self, place: int, shape: Shape) -> int:
        """The numbers of a row in another shape.

        Raises:
            ValueError: it has another number of numbers.
        """
        value = self.values[place]
        if value.operation != "number" and math.prod(value.shape) != math.prod(shape):
            raise ValueError(f"rows of {value.shape} have no view of {shape}")
        if value.shape == shape:
            return place
        if value.operation == "number":
            return self._put(value._replace(shape=shape))
        if value.operation == "view":
            return self.view(value.arguments[0], shape)
        return self._put(Value("view", (place,), shape))

    def expand(self, place: int, shape: Shape) -> int:
        """A row repeated along dimensions of size one."""
        value = self.values[place]
        if value.shape == shape:
            return place
        if value.operation == "number":
            return self._put(value._replace(shape=shape))
        return self._put(Value("expand", (place,), shape))

    def slice(self, place: int, dim: int, first: int, last: int) -> int:
        """Entries ``first`` up to ``last`` of a dimension."""
        shape = list(self.shape(place))
        if (first, last) == (0, shape[dim]):
            return place
        shape[dim] = last - first
        return self._put(Value("slice", (place,), tuple(shape), (dim, first, last)))

    def cat(self, places: Sequence[int], dim: int) -> int:
        """Rows side by side along a dimension."""
        if len(places) == 1:
            return places[0]
        shape = list(self.shape(places[0]))
        shape[dim] = sum(self.shape(place)[dim] for place in places)
        return self._put(Value("cat", tuple(places), tuple(shape), (dim,)))

    def permute(self, place: int, dims: Sequence[int]) -> int:
        """The dimensions of a row in another order."""
        shape = tuple(self.shape(place)[dim] for dim in dims)
        if list(dims) == list(range(len(dims))):
            return place
        return self._put(Value("permute", (place,), shape, tuple(dims)))

    def total(self, place: int, dims: Sequence[int]) -> int:
        """The sum over dimensions, which are dropped."""
        old = self.shape(place)
        rest = tuple(size for dim, size in enumerate(old) if dim not in dims)
        if math.prod(old) == math.prod(rest):
            return self.view(place, rest)
        dropped = tuple(sorted(dim for dim in dims if old[dim] > 1))
        shape = tuple(size for dim, size in enumerate(old) if dim not in dropped)
        return self.view(self._put(Value("total", (place,), shape, dropped)), rest)

    def fit(self, place: int, shape: Shape) -> int:
        """The sum of a row over the dimensions in which ``shape`` was broadcast to its own."""
        old = self.shape(place)
        extra = len(old) - len(shape)
        dims = [dim for dim, size in enumerate(old) if dim < extra or (shape[dim - extra] != size)]
        return self.view(self.total(place, dims), shape) if dims else place

    def leading(self, place: int, shape: Shape) -> int:
        """The sum of a row over all dimensions behind the first ones, which are ``shape``."""
        return self.total(place, range(len(shape), len(self.shape(place))))

    def trailing(self, place: int, shape: Shape) -> int:
        """A row that is the same along the last dimensions of ``shape``, of which it has the
        first."""
        old = self.shape(place)
        return self.view(place, (*old, *(1,) * (len(shape) - len(old))))

    def program(self, results: Sequence[Result]) -> Program:
        """The program of these results, each of them once."""
        assert len(set(results)) == len(results)
        return _pruned(Program(tuple(self.operands), tuple(self.values), tuple(results)))


_PROGRAMS: dict[str, Program] = {}


def known(program: Program) -> str:
    """Keeps a program for the operator's calls, and returns its key."""
    _PROGRAMS.setdefault(program.key, program)
    return program.key


def program_of(key: str) -> Program:
    """The program of a key."""
    return _PROGRAMS[key]
