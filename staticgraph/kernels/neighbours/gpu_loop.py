"""Writes the loop of a program over nodes and their edges as the text of a Triton kernel.

One Triton program per node goes over the node's edges in order, with the running values in
registers, as the kernels that are written by hand do; nothing is added atomically. A row is a tile
with one axis per dimension, or with one for several where no value needs them one by one. Every
value is asked for at an index (:mod:`staticgraph.kernels.neighbours.gpu_index`) and asks for its
arguments at theirs, down to loads at computed positions, so views, slices and broadcasts cost
nothing. A concatenation is cut where its parts meet: into several results, or into several sums
where it is summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from staticgraph.kernels.neighbours.gpu_index import Axis, Cut, Index, along, flat, unflat
from staticgraph.kernels.neighbours.gpu_operations import OPERATIONS, SQRT
from staticgraph.kernels.neighbours.program import LEAST_VARIANCE, Program, Result

# Numbers of the largest tile; more would spill registers.
MAX_TILE = 8192


class Text(NamedTuple):
    """The text of a kernel.

    Attributes:
        source: a function called ``NAME``, of :attr:`arguments` and the dtype ``WIDE``.
        arguments: names of the edges' arrays (:class:`staticgraph.kernels.edges.Edges`), and
            ``operand_0``, ``code_0``, ``result_0`` and so on.
        tile: numbers of the largest tile.
    """

    source: str
    arguments: tuple[str, ...]
    tile: int


class Number(NamedTuple):
    """A variable of a kernel: a number, or a tile of numbers.

    Attributes:
        name: of the variable.
        axes: of the tile, in the order in which the kernel has its axes.
        per_edge: whether it is computed for each edge, rather than before the loop over them.
        constant: the value of a constant.
    """

    name: str
    axes: tuple[Axis, ...] = ()
    per_edge: bool = False
    constant: float | None = None


@dataclass
class _Lines:
    """What has been written.

    Attributes:
        setup: positions along axes, and masks.
        before: what depends on the node alone, and the start of running values.
        loop, late: for each edge; ``late`` is behind all of ``loop``.
        after: results of the node.
        arguments, axes: of the kernel, in order.
        variables: what has been written, by what it is.
        tile: numbers of the largest tile.
    """

    setup: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    loop: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    variables: dict[Any, Any] = field(default_factory=dict)
    tile: int = 1

    def copy(self) -> _Lines:
        """A copy that can be returned to."""
        return replace(self, **{name: copy(value) for name, value in vars(self).items()})


class _MustCut(Exception):
    """A value is made of parts that meet at a position along an axis."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)
        self.cut: Cut = cut


class _NotMerged(Exception):
    """Dimensions that were merged are needed one by one."""


def kernel_text(program: Program, into: bool) -> Text:
    """Writes a program's loop over the edges into each node, or out of it.

    Raises:
        NotImplementedError: an operation cannot be written; the message names it.
    """
    most = max(len(program.values[result.value].shape) for result in program.results)
    try:
        for kept in range(most):
            with suppress(_NotMerged):
                return _Writer(program, into, kept).text()
        return _Writer(program, into, None).text()
    except RecursionError:
        raise NotImplementedError(
            f"{len(program.values)} operations, too many of them one after another"
        ) from None


class _Writer:
    """Writes one loop.

    Args:
        into: whether edges are those into a node, which it is the target of; otherwise those out of
            it.
        kept: how many of a result's first dimensions have an axis each; all others share one. None
            if all have one each.
    """

    def __init__(self, program: Program, into: bool, kept: int | None) -> None:
        self.program: Program = program
        self.into: bool = into
        self.kept: int | None = kept
        self.lines: _Lines = _Lines()

    def text(self) -> Text:
        """Writes the kernel.

        Raises:
            NotImplementedError: a tile is too large.
        """
        pointer = self._argument("row_ptr" if self.into else "col_ptr")
        for number in range(len(self.program.results)):
            self._result(number)
        lines = self.lines
        if lines.tile > MAX_TILE:
            raise NotImplementedError(
                f"tiles of {lines.tile} numbers, the largest row in powers of two; a kernel holds "
                f"{MAX_TILE} at the most"
            )
        body = [
            "node = tl.program_id(0).to(tl.int64)",
            f"begin = tl.load({pointer} + node).to(tl.int64)",
            f"end = tl.load({pointer} + node + 1).to(tl.int64)",
            *lines.setup,
            *lines.before,
            "for place in range(begin, end):",
            *(f"    {line}" for line in (lines.loop + lines.late) or ["pass"]),
            *lines.after,
        ]
        arguments = ", ".join(lines.arguments)
        head = f"@triton.jit\ndef NAME({arguments}, WIDE: tl.constexpr):\n"
        source = head + "".join(f"    {line}\n" for line in body)
        return Text(source, tuple(lines.arguments), lines.tile)

    # ------------------------------------------------------------------ variables

    def _argument(self, name: str) -> str:
        if name not in self.lines.arguments:
            self.lines.arguments.append(name)
        return name

    def _once(self, key: Any, write: Callable[[], Any]) -> Any:
        """What is written under a key, which is written once."""
        if key not in self.lines.variables:
            value = write()
            self.lines.variables[key] = value
        return self.lines.variables[key]

    def _let(self, lines: list[str], expression: str) -> str:
        """Writes an expression to a new variable, and returns its name."""
        number = self.lines.variables.get("count", 0)
        self.lines.variables["count"] = number + 1
        lines.append(f"v{number} = {expression}")
        return f"v{number}"

    def _where(self, per_edge: bool) -> list[str]:
        return self.lines.loop if per_edge else self.lines.before

    def _attempt(self, write: Callable[[], Number]) -> Number:
        """Writes a value, or nothing if it must be cut."""
        before = self.lines.copy()
        try:
            return write()
        except _MustCut:
            self.lines = before
            raise

    def _constant(self, number: float) -> Number:
        literal = repr(number) if math.isfinite(number) else f"float('{number}')"
        text = f"tl.full((), {literal}, WIDE)"
        name = self._once(("constant", literal), lambda: self._let(self.lines.setup, text))
        return Number(name, constant=number)

    # ------------------------------------------------------------------ positions

    def _axis(self, size: int, taken: set[Axis]) -> Axis | None:
        """The first axis of a size that is not taken, which it then is; None for a size of one."""
        if size == 1:
            return None
        axis = next(axis for number in count() if (axis := Axis(size, number)) not in taken)
        taken.add(axis)
        if axis not in self.lines.axes:
            self.lines.axes.append(axis)
            self.lines.setup.append(f"{axis.name} = tl.arange(0, {axis.block})")
        return axis

    def _ordered(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        return tuple(sorted(set(axes), key=self.lines.axes.index))

    def _position(self, index: Index) -> str:
        """The variable of an index: a tile of its axes."""
        axes = self._ordered(index.axes)
        if not axes:
            return str(index.constant)

        def write() -> str:
            terms = []
            for term, factor in index.terms:
                if isinstance(term, Axis):
                    one = _lifted(term.name, (term,), axes)
                else:
                    way = "%" if term.remainder else "//"
                    inner = f"({self._position(term.inside)} {way} {term.divisor})"
                    one = _lifted(inner, self._ordered(term.inside.axes), axes)
                terms.append(one if factor == 1 else f"{one} * {factor}")
            terms += [str(index.constant)] * (index.constant != 0)
            return self._let(self.lines.setup, " + ".join(terms))

        return self._once(index, write)

    def _mask(self, masked: Iterable[Axis], axes: tuple[Axis, ...]) -> str | None:
        """The variable that says where a tile of ``axes`` is within the ``masked`` ones; None if it
        is everywhere."""
        short = tuple(axis for axis in self._ordered(masked) if axis.block != axis.size)
        tests = [_lifted(f"({axis.name} < {axis.size})", (axis,), axes) for axis in short]
        text = " & ".join(tests)
        if not short:
            return None
        return self._once(("mask", short, axes), lambda: self._let(self.lines.setup, text))

    def _at(self, row: str, index: Index) -> tuple[str, str, tuple[Axis, ...]]:
        """The address of the numbers of a row, the mask as an argument, and the axes."""
        axes = self._tile(index.axes)
        mask = self._mask(axes, axes)
        address = row if index == Index() else f"{row} + {self._position(index)}"
        return address, "" if mask is None else f", mask={mask}", axes

    def _tile(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """The axes of a tile, in order; notes its size."""
        axes = self._ordered(axes)
        self.lines.tile = max(self.lines.tile, math.prod(axis.block for axis in axes))
        return axes

    def _cut(self, index: Sequence[Index], cut: Cut) -> Iterator[tuple[list[Axis], list[Index]]]:
        """Both sides of an index that is cut, or its rows: the axes instead of the one that was
        cut, and the index."""
        axis, at, into_rows = cut
        others = {one for part in index for one in part.axes} - {axis}
        if into_rows:
            pairs = [((axis.size // at, at), 0)]
        else:
            pairs = [((1, at), 0), ((1, axis.size - at), at)]
        for sizes, first in pairs:
            taken = others.copy()
            row, column = (self._axis(size, taken) for size in sizes)
            here = along(row).times(at).plus(along(column)).plus(Index((), first))
            axes = [one for one in (row, column) if one is not None]
            yield axes, [part.put(axis, here) for part in index]

    # ------------------------------------------------------------------ nodes and edges

    def _edge(self) -> str:
        """The number of the edge."""
        if self.into:
            return "place"
        text = f"tl.load({self._argument('transpose')} + place).to(tl.int64)"
        return self._once("edge", lambda: self._let(self.lines.loop, text))

    def _other(self) -> str:
        """The node at the other end of the edge."""
        ends, edge = self._argument("src" if self.into else "dst"), self._edge()
        return self._once("other", lambda: self._let(self.lines.loop, f"tl.load({ends} + {edge})"))

    def _share(self) -> Number:
        """One over the number of edges into the target."""
        if self.into:
            edges = "(end - begin)"
        else:
            pointer, node = self._argument("row_ptr"), self._other()
            edges = f"(tl.load({pointer} + {node} + 1) - tl.load({pointer} + {node}))"
        text, lines = f"1.0 / tl.maximum({edges}, 1).to(WIDE)", self._where(not self.into)
        return Number(self._once("share", lambda: self._let(lines, text)), (), not self.into)

    def _operand(self, number: int) -> tuple[str, bool]:
        """The row of an operand, and whether it is another one for each edge."""
        place, shape, code = self.program.operands[number]
        name = self._argument(f"operand_{number}")
        per_edge = place not in ("target" if self.into else "source", "all")
        if place == "all":
            return name, False

        def write() -> str:
            row = "node"
            if place == "edge":
                row = self._edge()
            elif place == "table":
                row = f"tl.load({self._argument(f'code_{code}')} + {self._edge()})"
            elif per_edge:
                row = self._other()
            return self._let(self._where(per_edge), f"{name} + {row} * {math.prod(shape)}")

        return self._once(name, write), per_edge

    # ------------------------------------------------------------------ values

    def _value(self, place: int, index: Sequence[Index]) -> Number:
        """A value of the program at an index."""
        index = tuple(index)
        return self._once((place, index), lambda: self._written(place, index))

    def _written(self, place: int, index: tuple[Index, ...]) -> Number:
        operation, arguments, shape, options = self.program.values[place]
        if operation in OPERATIONS:
            return self._point(operation, [self._broadcast(one, index) for one in arguments])
        if operation == "number":
            return self._constant(options[0])
        if operation == "share":
            return self._share()
        if operation == "operand":
            position = flat(index, shape)
            if self.kept is not None and not position.is_affine:
                raise _NotMerged
            if (cut := position.rows()) is not None and cut.into_rows:
                raise _MustCut(cut)
            row, per_edge = self._operand(options[0])
            address, mask, axes = self._at(row, position)
            text = f"tl.load({address}{mask}{', other=0.0' * bool(mask)}).to(WIDE)"
            return Number(self._let(self._where(per_edge), text), axes, per_edge)
        if operation == "expand":
            return self._broadcast(arguments[0], index)
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

    def _broadcast(self, place: int, index: Sequence[Index]) -> Number:
        """A value at an index of a shape that it broadcasts to."""
        shape = self.program.values[place].shape
        there = index[len(index) - len(shape) :]
        return self._value(
            place, [Index() if size == 1 else one for one, size in zip(there, shape, strict=True)]
        )

    def _point(self, operation: str, numbers: Sequence[Number]) -> Number:
        """A pointwise operation of numbers."""
        if (simple := self._simplified(operation, numbers)) is not None:
            return simple
        axes = self._tile(axis for number in numbers for axis in number.axes)
        per_edge = any(number.per_edge for number in numbers)
        lines = self._where(per_edge)
        names = [_lifted(number.name, number.axes, axes) for number in numbers]
        text = OPERATIONS[operation](lambda inner: self._let(lines, inner), *names)
        return Number(self._let(lines, text), axes, per_edge)

    def _simplified(self, operation: str, numbers: Sequence[Number]) -> Number | None:
        """A sum with zero or a product with zero or one, which appear where values are cut."""
        if operation == "neg" and numbers[0].constant is not None:
            return self._constant(-numbers[0].constant)
        if operation not in ("add", "sub", "mul"):
            return None
        first, second = numbers
        if operation == "mul" and 0 in (first.constant, second.constant):
            return self._constant(0.0)
        neutral = float(operation == "mul")
        if second.constant == neutral:
            return first
        return second if operation != "sub" and first.constant == neutral else None

    def _part(self, arguments: Sequence[int], dim: int, index: tuple[Index, ...]) -> Number:
        """The one of several values side by side that an index is in."""
        low, high = index[dim].bounds
        first = last = 0
        for one in arguments:
            last = first + self.program.values[one].shape[dim]
            if high < last:
                return self._value(one, _moved(index, dim, -first))
            if low < last:
                break
            first = last
        if self.kept is not None and not index[dim].is_affine:
            raise _NotMerged
        cut = index[dim].cut(last)
        if cut is None:
            raise NotImplementedError(
                "the operation 'cat' is followed by a view that mixes its parts"
            )
        raise _MustCut(cut)

    def _total(self, below: int, dims: Sequence[int], index: Sequence[Index]) -> Number:
        """The sum of a value over dimensions."""
        shape = self.program.values[below].shape
        if self.kept is not None and sum(size > 1 for size in shape) > 1:
            raise _NotMerged
        taken = {axis for one in index for axis in one.axes}
        summed: list[Axis] = []
        there, left = [], iter(index)
        for dim, size in enumerate(shape):
            if dim not in dims:
                there.append(next(left))
                continue
            axis = self._axis(size, taken)
            there.append(along(axis))
            summed += [] if axis is None else [axis]
        return self._summed(below, there, summed)

    def _summed(self, below: int, index: Sequence[Index], summed: Sequence[Axis]) -> Number:
        """The sum of a value over axes."""
        try:
            value = self._attempt(lambda: self._value(below, index))
        except _MustCut as error:
            if error.cut.axis not in summed:
                raise
            others = [axis for axis in summed if axis != error.cut.axis]
            first, *second = [
                self._summed(below, side, others + axes)
                for axes, side in self._cut(index, error.cut)
            ]
            return self._point("add", [first, *second]) if second else first
        over = [axis for axis in value.axes if axis in summed]
        if over:
            lines, text = self._where(value.per_edge), value.name
            if (mask := self._mask(over, value.axes)) is not None:
                text = self._let(lines, f"tl.where({mask}, {text}, 0.0)")
            for axis in reversed(over):
                text = self._let(lines, f"tl.sum({text}, {value.axes.index(axis)})")
            left = tuple(axis for axis in value.axes if axis not in over)
            value = Number(text, left, value.per_edge)
        times = float(math.prod(axis.size for axis in summed if axis not in over))
        if value.constant is not None:
            return self._constant(value.constant * times)
        return self._point("mul", [value, self._constant(times)])

    # ------------------------------------------------------------------ results

    def _result(self, number: int) -> None:
        """Writes a result, at an index of an axis for each dimension or for several."""
        shape = self.program.values[self.program.results[number].value].shape
        kept = len(shape) if self.kept is None else self.kept
        sizes = [*shape[:kept], *([math.prod(shape[kept:])] if shape[kept:] else [])]
        taken: set[Axis] = set()
        index = [along(self._axis(size, taken)) for size in sizes]
        if shape[kept:]:
            index = [*index[:-1], *unflat(index[-1], shape[kept:])]
        self._result_at(number, index)

    def _result_at(self, number: int, index: Sequence[Index]) -> None:
        """Writes a result at an index of its value, or each part of it."""
        result = self.program.results[number]
        try:
            value = self._attempt(lambda: self._value(result.value, index))
        except _MustCut as error:
            for _, side in self._cut(index, error.cut):
                self._result_at(number, side)
            return
        name, rows = self._argument(f"result_{number}"), result.reduction == "rows"
        lines, row = (self.lines.loop, self._edge()) if rows else (self.lines.after, "node")
        whole = self.program.shape(result)
        text = f"{name} + {row} * {math.prod(whole)}"
        row = self._once(name, lambda: self._let(lines, text))
        width = self.program.values[result.value].shape[-1] if whole else 0
        for part, reduction in enumerate(result.reductions):
            reduced = value.name if rows else self._reduced(value, reduction)
            if result.start >= 0:
                value, reduced = self._onto(result, value._replace(name=reduced), index)
            position = flat(index, whole).plus(Index((), part * width))
            address, mask, axes = self._at(row, position)
            lines.append(f"tl.store({address}, {_lifted(reduced, value.axes, axes)}{mask})")

    def _onto(self, result: Result, total: Number, index: Sequence[Index]) -> tuple[Number, str]:
        """A sum, added to the row of the node that it starts from."""
        row, _ = self._operand(result.start)
        position = flat(index, self.program.values[result.value].shape)
        address, mask, axes = self._at(row, position)
        start = f"tl.load({address}{mask}{', other=0.0' * bool(mask)}).to(WIDE)"
        text = f"{_lifted(total.name, total.axes, axes)} + {start}"
        return total._replace(axes=axes), self._let(self.lines.after, text)

    def _reduced(self, value: Number, reduction: str) -> str:
        """The variable of a reduction over the edges of the node."""
        after = self.lines.after
        zero, one = self._constant(0.0).name, self._constant(1.0).name
        if value.constant == 0 and reduction in ("sum", "mean", "source_sum"):
            return zero
        if reduction in ("sum", "source_sum"):
            return self._sum(value)
        if reduction == "mean":
            return self._let(after, f"{self._sum(value)} * {self._share().name}")
        if reduction in ("min", "max"):
            best = self._best(value, reduction)
            return self._let(after, f"tl.where(begin == end, {zero}, {best})")
        if reduction in ("min_ties", "max_ties"):
            best, ties = self._ties(value, reduction[:3], zero, one)
            best = self._let(after, f"tl.where(begin == end, {zero}, {best})")
            return self._let(after, f"{ties} + tl.where({best} == 0.0, {one}, {zero})")
        if reduction in ("var", "std"):
            share = self._share().name
            gaps, squares = self._gaps(value)
            gap = self._let(after, f"{gaps} * {share}")
            spread = self._let(after, f"{squares} * {share} - {gap} * {gap}")
            if reduction == "var":
                return spread
            root = SQRT.format(spread)
            return self._let(after, f"tl.where({spread} <= {LEAST_VARIANCE}, {zero}, {root})")
        raise NotImplementedError(f"the reduction {reduction!r} has no Triton form")

    def _start(self, value: Number, start: str) -> str:
        """A running value, before the first edge."""
        sizes = ", ".join(str(axis.block) for axis in value.axes)
        shape = f"[{sizes}]" if sizes else "()"
        return self._let(self.lines.before, f"tl.full({shape}, {start}, WIDE)")

    def _sum(self, value: Number) -> str:
        def write() -> str:
            total = self._start(value, "0.0")
            self.lines.late.append(f"{total} += {value.name}")
            return total

        return self._once(("sum", value.name), write)

    def _best(self, value: Number, way: str) -> str:
        """The smallest or the largest value; NaN if one is."""

        def write() -> str:
            best = self._start(value, "float('inf')" if way == "min" else "float('-inf')")
            better = f"({self._better(value.name, best, way)}) | ({value.name} != {value.name})"
            self.lines.late.append(f"{best} = tl.where({better}, {value.name}, {best})")
            return best

        return self._once((way, value.name), write)

    @staticmethod
    def _better(value: str, best: str, way: str) -> str:
        return f"{value} < {best}" if way == "min" else f"{best} < {value}"

    def _ties(self, value: Number, way: str, zero: str, one: str) -> tuple[str, str]:
        """The smallest or the largest value, and how many edges have it."""
        best = self._best(value, way)

        def write() -> str:
            ties = self._start(value, "0.0")
            equal = f"tl.where({value.name} == {best}, {one}, {zero})"
            better = self._better(value.name, best, way)
            self.lines.loop.append(f"{ties} = tl.where({better}, {one}, {ties} + {equal})")
            return ties

        return best, self._once((way, "ties", value.name), write)

    def _gaps(self, value: Number) -> tuple[str, str]:
        """The sums of the differences from the first edge's value, and of their squares."""

        def write() -> tuple[str, str]:
            first, gaps, squares = (self._start(value, "0.0") for _ in range(3))
            loop = self.lines.loop
            loop.append(f"{first} = tl.where(place == begin, {value.name}, {first})")
            gap = self._let(loop, f"{value.name} - {first}")
            loop.append(f"{gaps} += {gap}")
            loop.append(f"{squares} += {gap} * {gap}")
            return gaps, squares

        return self._once(("gaps", value.name), write)


def _lifted(text: str, axes: tuple[Axis, ...], to: tuple[Axis, ...]) -> str:
    """A tile of some axes, with more of them."""
    if not axes or axes == to:
        return text
    return f"{text}[{', '.join(':' if axis in axes else 'None' for axis in to)}]"


def _moved(index: Sequence[Index], dim: int, by: int) -> list[Index]:
    """An index, further along a dimension."""
    return [*index[:dim], index[dim].plus(Index((), by)), *index[dim + 1 :]]
