"""The text of a Triton kernel while it is written: its variables, axes of tiles and positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from staticgraph.kernels.neighbours.gpu_index import LANE, Axis, Cut, Index, along


class Number(NamedTuple):
    """A variable of a kernel: a number, or a tile of numbers.

    Attributes:
        name: of the variable.
        axes: of the tile, in the order in which the kernel has its axes; with that of the edges if
            it is computed for each of them, rather than before the loop over them.
        constant: the value of a constant.
        nothing: whether it is the zero that a program's builder calls so.
    """

    name: str
    axes: tuple[Axis, ...] = ()
    constant: float | None = None
    nothing: bool = False

    @property
    def per_edge(self) -> bool:
        """Whether it is computed for each edge."""
        return LANE in self.axes

    def lifted(self, to: tuple[Axis, ...]) -> str:
        """The tile, with more axes."""
        return lifted(self.name, self.axes, to)


@dataclass
class Lines:
    """What has been written.

    Attributes:
        setup: positions along axes, and masks.
        before: what depends on the node alone, and the start of running values.
        loop, late: for each edge; ``late`` is behind all of ``loop``.
        after: results of the node.
        arguments, axes: of the kernel, in order; the first axis is that of edges.
        running: how many values the loop adds to.
        variables: what has been written, by what it is.
        largest: numbers of the largest tile of one edge.
    """

    setup: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    loop: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=lambda: [LANE])
    running: int = 0
    variables: dict[Any, Any] = field(default_factory=dict)
    largest: int = 1

    def copy(self) -> Lines:
        """A copy that can be returned to."""
        return replace(self, **{name: copy(value) for name, value in vars(self).items()})

    def argument(self, name: str) -> str:
        """Notes an argument of the kernel, and returns its name."""
        if name not in self.arguments:
            self.arguments.append(name)
        return name

    def once(self, key: Any, write: Callable[[], Any]) -> Any:
        """What is written under a key, which is written once."""
        if key not in self.variables:
            value = write()
            self.variables[key] = value
        return self.variables[key]

    def let(self, lines: list[str], expression: str) -> str:
        """Writes an expression to a new variable, and returns its name."""
        number = self.variables.get("count", 0)
        self.variables["count"] = number + 1
        lines.append(f"v{number} = {expression}")
        return f"v{number}"

    def where(self, per_edge: bool) -> list[str]:
        """The lines for each edge, or those before the loop over edges."""
        return self.loop if per_edge else self.before

    def constant(self, number: float, nothing: bool = False) -> Number:
        """A constant."""
        literal = repr(number) if math.isfinite(number) else f"float('{number}')"
        text = f"tl.full((), {literal}, WIDE)"
        name = self.once(("constant", literal), lambda: self.let(self.setup, text))
        return Number(name, constant=number, nothing=nothing)

    # ------------------------------------------------------------------ positions

    def axis(self, size: int, taken: set[Axis]) -> Axis | None:
        """The first axis of a size that is not taken, which it then is; None for a size of one."""
        if size == 1:
            return None
        axis = next(axis for number in count() if (axis := Axis(size, number)) not in taken)
        taken.add(axis)
        if axis not in self.axes:
            self.axes.append(axis)
            self.setup.append(f"{axis.name} = tl.arange(0, {axis.block})")
        return axis

    def ordered(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """The axes of a tile, in order."""
        return tuple(sorted(set(axes), key=self.axes.index))

    def position(self, index: Index) -> str:
        """The variable of an index: a tile of its axes."""
        axes = self.ordered(index.axes)
        if not axes:
            return str(index.constant)

        def write() -> str:
            terms = []
            for term, factor in index.terms:
                if isinstance(term, Axis):
                    text = lifted(term.name, (term,), axes)
                else:
                    way = "%" if term.remainder else "//"
                    inner = f"({self.position(term.inside)} {way} {term.divisor})"
                    text = lifted(inner, self.ordered(term.inside.axes), axes)
                terms.append(text if factor == 1 else f"{text} * {factor}")
            terms += [str(index.constant)] * (index.constant != 0)
            return self.let(self.setup, " + ".join(terms))

        return self.once(index, write)

    def mask(self, masked: Iterable[Axis], axes: tuple[Axis, ...]) -> str | None:
        """The variable that says where a tile of ``axes`` is within the ``masked`` ones; None if it
        is everywhere."""
        masked = self.ordered(masked)
        short = tuple(axis for axis in masked if axis.block != axis.size or axis == LANE)
        tests = [
            lifted("here" if axis == LANE else f"({axis.name} < {axis.size})", (axis,), axes)
            for axis in short
        ]
        text, lines = " & ".join(tests), self.loop if LANE in short else self.setup
        if not short:
            return None
        return self.once(("mask", short, axes), lambda: self.let(lines, text))

    def find_address(self, row: Number, index: Index) -> tuple[str, str, tuple[Axis, ...]]:
        """The address of the numbers of a row, the mask as an argument, and the axes."""
        axes = self.tile(row, index)
        mask, address = self.mask(axes, axes), row.lifted(axes)
        if index != Index():
            address += f" + {lifted(self.position(index), self.ordered(index.axes), axes)}"
        return address, "" if mask is None else f", mask={mask}", axes

    def tile(self, *parts: Number | Index | None) -> tuple[Axis, ...]:
        """The axes of a tile for several, in order; notes its size."""
        axes = self.ordered(axis for part in parts if part is not None for axis in part.axes)
        row = math.prod(axis.block for axis in axes if axis != LANE)
        self.largest = max(self.largest, row)
        return axes

    def cut(self, index: Sequence[Index], cut: Cut) -> list[tuple[list[Axis], list[Index]]]:
        """Both sides of an index that is cut, or its rows: the axes instead of the one that was
        cut, and the index."""
        axis, at, into_rows = cut
        others = {other for part in index for other in part.axes} - {axis}
        if into_rows:
            pairs = [((axis.size // at, at), 0)]
        else:
            pairs = [((1, at), 0), ((1, axis.size - at), at)]
        sides: list[tuple[list[Axis], list[Index]]] = []
        for sizes, first in pairs:
            taken = others.copy()
            row, column = (self.axis(size, taken) for size in sizes)
            here = along(row).times(at).plus(along(column)).plus(Index((), first))
            axes = [piece for piece in (row, column) if piece is not None]
            sides.append((axes, [part.put(axis, here) for part in index]))
        return sides


def lifted(text: str, axes: tuple[Axis, ...], to: tuple[Axis, ...]) -> str:
    """A tile of some axes, with more of them."""
    if not axes or axes == to:
        return text
    return f"{text}[{', '.join(':' if axis in axes else 'None' for axis in to)}]"
