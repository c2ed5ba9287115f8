"""Writes the values of a program in the text of a Triton kernel.

Every value is asked for at an index (:mod:`staticgraph.kernels.neighbours.gpu_index`) and asks for
its arguments at theirs, down to loads at computed positions, so views, slices and broadcasts cost
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from staticgraph.kernels.neighbours.gpu_index import LANE, Axis, Cut, Index, along, flat, unflat
from staticgraph.kernels.neighbours.gpu_lines import Lines, Number
from staticgraph.kernels.neighbours.gpu_operations import OPERATIONS
from staticgraph.kernels.neighbours.program import Program

T = TypeVar("T")


class MustCut(Exception):
    """A value is made of parts that meet at a position along an axis."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)
        self.cut: Cut = cut


class NotMerged(Exception):
    """Dimensions that were merged are needed one by one."""


class Values:
    """Writes values.

    Args:
        into: whether edges are those into a node, which it is the target of; otherwise those out of
            it.
        ordered: whether there is an array of the order of edges by destination.
        kept_dims: how many of a result's first dimensions have an axis each; all others share one.
            None if all have one each.

    Attributes:
        own_term: whether values are those of the node itself, instead of those of an edge.
    """

    def __init__(self, program: Program, into: bool, ordered: bool, kept_dims: int | None) -> None:
        self.program: Program = program
        self.into: bool = into
        self.ordered: bool = ordered
        self.kept_dims: int | None = kept_dims
        self.own_term: bool = False
        self.lines: Lines = Lines()

    def attempt(self, write: Callable[[], T]) -> T:
        """Writes values, or nothing if one must be cut."""
        before = self.lines.copy()
        try:
            return write()
        except MustCut:
            self.lines = before
            raise

    # ------------------------------------------------------------------ nodes and edges

    def edge(self) -> str:
        """The numbers of the edges."""
        if self.into and not self.ordered:
            return "place"
        order = self.lines.argument("order" if self.into else "transpose")
        return self._read_at(order, "place", ".to(tl.int64)")

    def _other(self) -> str:
        """The nodes at the other end of the edges."""
        return self._read_at(self.lines.argument("src" if self.into else "dst"), self.edge())

    def _read_at(self, array: str, places: str, more: str = "") -> str:
        """The numbers of an array at places, one for each edge that there is."""
        text = f"tl.load({array} + {places}, mask=here, other=0){more}"
        return self.lines.once(text, lambda: self.lines.let(self.lines.loop, text))

    def share(self) -> Number:
        """One over the number of edges into the target."""
        if self.into:
            edges = "(end - begin)"
        else:
            pointer, node = self.lines.argument("row_ptr"), self._other()
            edges = f"(tl.load({pointer} + {node} + 1) - tl.load({pointer} + {node}))"
        text, lines = f"1.0 / tl.maximum({edges}, 1).to(WIDE)", self.lines.where(not self.into)
        name = self.lines.once("share", lambda: self.lines.let(lines, text))
        return Number(name, () if self.into else (LANE,))

    def _operand(self, number: int) -> Number:
        """The address of the row of an operand."""
        place, shape, _ = self.program.operands[number]
        if place == "table":
            raise NotImplementedError("a table that edges read")
        name = self.lines.argument(f"operand_{number}")
        per_edge = not self.own_term and place not in ("target" if self.into else "source", "all")
        if place == "all":
            return Number(name)

        def write() -> str:
            row = "node"
            if place == "edge":
                row = self.edge()
            elif per_edge:
                row = self._other()
            text = f"{name} + {row} * {math.prod(shape)}"
            return self.lines.let(self.lines.where(per_edge), text)

        address = self.lines.once((name, per_edge), write)
        return Number(address, (LANE,) if per_edge else ())

    # ------------------------------------------------------------------ values

    def _value(self, place: int, index: Sequence[Index]) -> Number:
        """A value of the program at an index."""
        index = tuple(index)
        return self.lines.once((place, index, self.own_term), lambda: self._written(place, index))

    def _written(self, place: int, index: tuple[Index, ...]) -> Number:
        operation, arguments, shape, options = self.program.values[place]
        if operation in OPERATIONS:
            return self._point(
                operation, [self.broadcast(argument, index) for argument in arguments]
            )
        if operation == "number":
            return self.lines.constant(options[0], len(options) > 1)
        if operation == "share":
            return self.share()
        if operation == "loop":
            return Number(self.lines.let(self.lines.loop, f"{self._other()} == node"), (LANE,))
        if operation == "operand":
            position = flat(index, shape)
            if self.kept_dims is not None and not position.is_affine:
                raise NotMerged
            if (cut := position.rows()) is not None and cut.into_rows:
                raise MustCut(cut)
            row = self._operand(options[0])
            address, mask, axes = self.lines.find_address(row, position)
            text = f"tl.load({address}{mask}{', other=0.0' * bool(mask)}).to(WIDE)"
            return Number(self.lines.let(self.lines.where(row.per_edge), text), axes)
        if operation == "expand":
            return self.broadcast(arguments[0], index)
        if operation == "view":
            below = self.program.values[arguments[0]].shape
            return self._value(arguments[0], unflat(flat(index, shape), below))
        if operation == "slice":
            return self._value(arguments[0], _moved(index, options[0], options[1]))
        if operation == "permute":
            return self._value(arguments[0], [index[options.index(d)] for d in range(len(shape))])
        if operation == "cat":
            return self._part(arguments, options[0], index)
        if operation == "total":
            return self._total(arguments[0], options, index)
        raise NotImplementedError(f"the operation {operation!r} has no Triton expression")

    def broadcast(self, place: int, index: Sequence[Index]) -> Number:
        """A value at an index of a shape that it broadcasts to."""
        shape = self.program.values[place].shape
        there = index[len(index) - len(shape) :]
        return self._value(
            place, [Index() if size == 1 else part for part, size in zip(there, shape, strict=True)]
        )

    def _point(self, operation: str, numbers: Sequence[Number]) -> Number:
        """A pointwise operation of numbers."""
        if (simple := self._simplified(operation, numbers)) is not None:
            return simple
        axes = self.lines.tile(*numbers)
        lines = self.lines.where(any(number.per_edge for number in numbers))
        names = [number.lifted(axes) for number in numbers]
        text = OPERATIONS[operation](lambda inner: self.lines.let(lines, inner), *names)
        return Number(self.lines.let(lines, text), axes)

    def _simplified(self, operation: str, numbers: Sequence[Number]) -> Number | None:
        """A sum or a product with nothing, or a product with one, which appear where values are
        cut."""
        if operation == "neg" and numbers[0].nothing:
            return numbers[0]
        if operation not in ("add", "sub", "mul"):
            return None
        for other, number in (numbers, numbers[::-1]) if operation != "sub" else (numbers,):
            if number.nothing:
                return number if operation == "mul" else other
            if operation == "mul" and number.constant == 1:
                return other
        return None

    def _part(self, arguments: Sequence[int], dim: int, index: tuple[Index, ...]) -> Number:
        """The one of several values side by side that an index is in."""
        low, high = index[dim].bounds
        first = last = 0
        for argument in arguments:
            last = first + self.program.values[argument].shape[dim]
            if high < last:
                return self._value(argument, _moved(index, dim, -first))
            if low < last:
                break
            first = last
        if self.kept_dims is not None and not index[dim].is_affine:
            raise NotMerged
        cut = index[dim].cut(last)
        if cut is None:
            raise NotImplementedError(
                "the operation 'cat' is followed by a view that mixes its parts"
            )
        raise MustCut(cut)

    def _total(self, below: int, dims: Sequence[int], index: Sequence[Index]) -> Number:
        """The sum of a value over dimensions."""
        shape = self.program.values[below].shape
        if self.kept_dims is not None and sum(size > 1 for size in shape) > 1:
            raise NotMerged
        taken = {axis for part in index for axis in part.axes}
        summed: list[Axis] = []
        there, left = [], iter(index)
        for dim, size in enumerate(shape):
            if dim not in dims:
                there.append(next(left))
                continue
            axis = self.lines.axis(size, taken)
            there.append(along(axis))
            summed += [] if axis is None else [axis]
        return self._summed(below, there, summed)

    def _summed(self, below: int, index: Sequence[Index], summed: Sequence[Axis]) -> Number:
        """The sum of a value over axes."""
        try:
            value = self.attempt(lambda: self._value(below, index))
        except MustCut as error:
            if error.cut.axis not in summed:
                raise
            others = [axis for axis in summed if axis != error.cut.axis]
            first, *second = [
                self._summed(below, side, others + axes)
                for axes, side in self.lines.cut(index, error.cut)
            ]
            return self._point("add", [first, *second]) if second else first
        over = [axis for axis in value.axes if axis in summed]
        if over:
            lines, text = self.lines.where(value.per_edge), value.name
            if (mask := self.lines.mask(over, value.axes)) is not None:
                text = self.lines.let(lines, f"tl.where({mask}, {text}, 0.0)")
            for axis in reversed(over):
                text = self.lines.let(lines, f"tl.sum({text}, {value.axes.index(axis)})")
            left = tuple(axis for axis in value.axes if axis not in over)
            value = Number(text, left)
        times = float(math.prod(axis.size for axis in summed if axis not in over))
        if value.constant is not None:
            return self.lines.constant(value.constant * times)
        return self._point("mul", [value, self.lines.constant(times)])


def _moved(index: Sequence[Index], dim: int, by: int) -> list[Index]:
    """An index, further along a dimension."""
    return [*index[:dim], index[dim].plus(Index((), by)), *index[dim + 1 :]]
