"""Writes the loop of a program over nodes and their edges as the text of a Triton kernel.

One Triton program per node goes over the node's edges, a few at once, each in a lane of its own:
then the loads of several edges are on their way together, and a node with thousands of edges takes
a fraction of the time. The running values of the lanes stay in registers and are joined at the end,
in the same order every time; nothing is added atomically. A row is a tile with one axis per
dimension, or with one for several where no value needs them one by one. A concatenation is cut
where its parts meet: into several results, or into several sums where it is summed.

A softmax takes the same loop: its sums are multiplied by an exponential, one per edge and weight,
whenever the maximum grows. A loop for the maximum alone would compute the weights twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from staticgraph.kernels.launch import warps
from staticgraph.kernels.neighbours.gpu_index import LANE, Axis, Index, along, flat, unflat
from staticgraph.kernels.neighbours.gpu_lines import Number
from staticgraph.kernels.neighbours.gpu_operations import SQRT
from staticgraph.kernels.neighbours.gpu_values import MustCut, NotMerged, Values
from staticgraph.kernels.neighbours.program import LEAST_VARIANCE, Program, Result

Term = Number | None
# Threads of a warp.
WARP = 32
# How many numbers of a tile of several edges a thread holds, by the most lines of a loop; a running
# value counts as two more. PNA's gradients spill with 16 everywhere, and take 127 registers with 8
# (compiled for an H100 by Triton 3.9, 2026-11-29; not run on one).
NUMBERS: dict[float, int] = {18: 16, 38: 8, math.inf: 4}
# Numbers of the largest tile; more would spill registers.
MAX_TILE = 8192
# The smallest float32, from which a maximum starts: -inf less this is -inf, and no NaN.
LEAST = -3.4028234663852886e38
_BETTER = {"min": "<", "max": ">"}
_WORST = {"min": "float('inf')", "max": "-float('inf')"}


class Text(NamedTuple):
    """The text of a kernel.

    Attributes:
        source: a function called ``NAME``, of :attr:`arguments`, the dtype ``WIDE`` and the number
            of edges that it takes at once, ``LANES``, a power of two.
        arguments: names of the edges' arrays (:class:`staticgraph.kernels.edges.Edges`), and
            ``operand_0``, ``result_0`` and so on.
        tile: numbers of the largest tile of one edge.
        lanes: how many edges to take at once.
    """

    source: str
    arguments: tuple[str, ...]
    tile: int
    lanes: int


def kernel_text(program: Program, into: bool, ordered: bool = False) -> Text:
    """Writes a program's loop over the edges into each node, or out of it; ``ordered`` as of
    :class:`~staticgraph.kernels.neighbours.gpu_values.Values`.

    Raises:
        NotImplementedError: an operation cannot be written; the message names it.
    """
    most = max(len(program.values[result.value].shape) for result in program.results)
    try:
        for kept_dims in range(most):
            with suppress(NotMerged):
                return _Loop(program, into, ordered, kept_dims).text()
        return _Loop(program, into, ordered, None).text()
    except RecursionError:
        raise NotImplementedError(
            f"{len(program.values)} operations, too many of them one after another"
        ) from None


class _Exponentials(NamedTuple):
    """Exponentials of weights, one after another, less the largest weight so far.

    Attributes:
        top: the largest weight of the node.
        whole: the sum of the exponentials, less the largest.
        begun: the exponential of the weight that the node starts from, if there is one.
        scale: what sums up to an edge are multiplied by, in each lane.
        power: the exponential of an edge.
        share: what the sums of a lane are multiplied by, once all edges are done.
    """

    top: Number
    whole: Number
    begun: Number | None
    scale: Number
    power: Number
    share: Number


class _Loop(Values):
    """Writes one loop."""

    def text(self) -> Text:
        """Writes the kernel.

        Raises:
            NotImplementedError: a tile is too large.
        """
        pointer = self.lines.argument("row_ptr" if self.into else "col_ptr")
        for number in range(len(self.program.results)):
            self._result(number)
        lines = self.lines
        if lines.largest > MAX_TILE:
            raise NotImplementedError(
                f"tiles of {lines.largest} numbers, the largest row in powers of two; a kernel "
                f"holds {MAX_TILE} at the most"
            )
        edge = lines.loop + lines.late
        if edge:
            edge = [f"    {line}" for line in ("place = first + lane", "here = place < end", *edge)]
        body = [
            "node = tl.program_id(0).to(tl.int64)",
            "lane = tl.arange(0, LANES)",
            f"begin = tl.load({pointer} + node).to(tl.int64)",
            f"end = tl.load({pointer} + node + 1).to(tl.int64)",
            *lines.setup,
            *lines.before,
            *(edge and ["for first in range(begin, end, LANES):", *edge]),
            *lines.after,
        ]
        arguments = ", ".join(lines.arguments)
        head = f"@triton.jit\ndef NAME({arguments}, WIDE: tl.constexpr, LANES: tl.constexpr):\n"
        source = head + "".join(f"    {line}\n" for line in body)
        work = len(edge) + 2 * lines.running
        numbers = next(numbers for most, numbers in NUMBERS.items() if work <= most)
        lanes = max(1, min(WARP, numbers * WARP * warps(lines.largest) // lines.largest))
        return Text(source, tuple(lines.arguments), lines.largest, lanes)

    # ------------------------------------------------------------------ results

    def _result(self, number: int) -> None:
        """Writes a result, at an index of an axis for each dimension or for several."""
        shape = self.program.values[self.program.results[number].value].shape
        kept_dims = len(shape) if self.kept_dims is None else self.kept_dims
        sizes = [*shape[:kept_dims], *([math.prod(shape[kept_dims:])] if shape[kept_dims:] else [])]
        taken: set[Axis] = set()
        index = [along(self.lines.axis(size, taken)) for size in sizes]
        if shape[kept_dims:]:
            index = [*index[:-1], *unflat(index[-1], shape[kept_dims:])]
        self._result_at(number, index)

    def _result_at(self, number: int, index: Sequence[Index]) -> None:
        """Writes a result at an index of its value, or each part of it."""
        result = self.program.results[number]
        try:
            value, *others = self.attempt(lambda: self._terms(result, index))
        except MustCut as error:
            for _, side in self.lines.cut(index, error.cut):
                self._result_at(number, side)
            return
        assert value is not None
        lines, name, rows = self.lines, f"result_{number}", result.reduction == "rows"
        where, row, axes = (lines.loop, self.edge(), (LANE,)) if rows else (lines.after, "node", ())
        whole = self.program.shape(result)
        text = f"{lines.argument(name)} + {row} * {math.prod(whole)}"
        row = Number(lines.once(name, lambda: lines.let(where, text)), axes)
        width = self.program.values[result.value].shape[-1] if whole else 0
        for part, reduction in enumerate(result.reductions):
            reduced = value if rows else self._reduced(reduction, value, *others)
            position = flat(index, whole).plus(Index((), part * width))
            address, mask, axes = lines.find_address(row, position)
            where.append(f"tl.store({address}, {reduced.lifted(axes)}{mask})")

    def _terms(self, result: Result, index: Sequence[Index]) -> list[Term]:
        """The value, the start and the weights of both, at an index of the value."""

        def term(place: int, own_term: bool, index: Sequence[Index]) -> Term:
            self.own_term = own_term
            return self.broadcast(place, index) if place >= 0 else None

        weight = self.program.values[result.weight]  # any value, without weights
        front = index[: len(weight.shape)]
        first = [term(result.value, False, index), term(result.start, True, index)]
        return [*first, term(result.weight, False, front), term(result.start_weight, True, front)]

    # ------------------------------------------------------------------ reductions

    def _reduced(
        self, reduction: str, value: Number, start: Term, weight: Term, start_weight: Term
    ) -> Number:
        """The reduction of a value over the edges of the node."""
        if value.constant == 0 and reduction in ("sum", "mean", "source_sum"):
            return start or self.lines.constant(0.0)
        if reduction in ("sum", "source_sum"):
            return self._sum(value, start)
        if reduction == "softmax":
            assert weight is not None
            return self._softmax(value, start, weight, start_weight)
        if reduction == "logsumexp":
            powers = self._exponentials(value, start)
            whole = powers.whole.name
            text = f"tl.where({whole} == 0.0, 0.0, {powers.top.name} + tl.log({whole}))"
            return self._after(text, powers.whole.axes)
        return self._after(self._simple(value, reduction), self._lanes(value)[1:])

    def _simple(self, value: Number, reduction: str) -> str:
        """The expression of a reduction without start and weights."""
        if reduction == "mean":
            return f"{self._sum(value).name} * {self.share().name}"
        if reduction in ("min", "max"):
            return f"tl.where(begin == end, 0.0, {self._best(value, reduction)[2].name})"
        if reduction in ("min_ties", "max_ties"):
            best, ties = self._ties(value, reduction[:3])
            return f"{ties} + ((begin == end) | ({best} == 0.0)).to(WIDE)"
        if reduction in ("var", "std"):
            share = self.share().name
            gaps, squares = self._gaps(value)
            gap = self.lines.let(self.lines.after, f"{gaps} * {share}")
            spread = f"{squares} * {share} - {gap} * {gap}"
            if reduction == "var":
                return spread
            spread = self.lines.let(self.lines.after, spread)
            return f"tl.where({spread} <= {LEAST_VARIANCE}, 0.0, {SQRT.format(spread)})"
        raise NotImplementedError(f"the reduction {reduction!r} has no Triton form")

    def _after(self, text: str, axes: tuple[Axis, ...]) -> Number:
        """A number of the node, once all edges are done."""
        return Number(self.lines.let(self.lines.after, text), axes)

    def _lanes(self, *parts: Term) -> tuple[Axis, ...]:
        """The axes of running values of several, one for each edge that is taken at once."""
        return self.lines.tile(Number("place", (LANE,)), *parts)

    def _start(self, axes: tuple[Axis, ...], start: str) -> str:
        """A running value of each lane, before the first edge."""
        self.lines.running += 1
        shape = ", ".join("LANES" if axis == LANE else str(axis.block) for axis in axes)
        return self.lines.let(self.lines.before, f"tl.full([{shape}], {start}, WIDE)")

    def _each(self, value: Number | str, axes: tuple[Axis, ...], otherwise: str) -> str:
        """A value, and another one in the lanes that have no edge."""
        text = value if isinstance(value, str) else value.lifted(axes)
        return f"tl.where({self.lines.mask((LANE,), axes)}, {text}, {otherwise})"

    def _sum(self, value: Number, start: Term = None) -> Number:
        """The sum of a value, and of what the node starts from."""

        def write() -> Number:
            axes = self._lanes(value, start)
            total = self._start(axes, "0.0")
            self.lines.late.append(f"{total} += {self._each(value, axes, '0.0')}")
            more = f" + {start.lifted(axes[1:])}" if start else ""
            return self._after(f"tl.sum({total}, 0){more}", axes[1:])

        return self.lines.once(("sum", value.name, start), write)

    def _softmax(self, value: Number, start: Term, weight: Number, start_weight: Term) -> Number:
        """The sum of a value, weighted by a softmax."""
        powers = self._exponentials(weight, start_weight)
        axes = self._lanes(value, powers.power, start)
        total, rest = self._start(axes, "0.0"), axes[1:]
        scale, power = powers.scale.lifted(axes), powers.power.lifted(axes)
        each = self._each(value, axes, "0.0")
        self.lines.late.append(f"{total} = {total} * {scale} + {power} * {each}")
        text = f"tl.sum({total} * {powers.share.lifted(axes)}, 0)"
        if start and powers.begun:
            text += f" + {powers.begun.lifted(rest)} * {start.lifted(rest)}"
        whole = powers.whole
        some = self._after(f"tl.where({whole.name} == 0.0, 1.0, {whole.name})", whole.axes)
        return self._after(f"({text}) / {some.lifted(rest)}", rest)

    def _exponentials(self, weight: Number, start: Term) -> _Exponentials:
        """The exponentials of weights, less the largest so far."""

        def write() -> _Exponentials:
            lines, axes = self.lines, self._lanes(weight, start)
            best, total, rest = self._start(axes, repr(LEAST)), self._start(axes, "0.0"), axes[1:]
            each = lines.let(lines.loop, self._each(weight, axes, repr(LEAST)))
            gap = lines.let(lines.loop, f"{each} - {best}")
            fall = lines.let(lines.loop, f"tl.exp(-tl.abs({gap}))")
            scale = lines.let(lines.loop, f"tl.where({gap} > 0.0, {fall}, 1.0)")
            power = self._each(f"tl.where({gap} > 0.0, 1.0, {fall})", axes, "0.0")
            power = lines.let(lines.loop, power)
            lines.late.append(f"{total} = {total} * {scale} + {power}")
            lines.late.append(f"{best} = tl.maximum({best}, {each})")
            largest, begun = f"tl.max({best}, 0)", None
            if start:
                largest = f"tl.maximum({largest}, {start.lifted(rest)})"
            top = self._after(largest, rest)
            share = lines.let(lines.after, f"tl.exp({best} - {top.lifted(axes)})")
            whole = f"tl.sum({total} * {share}, 0)"
            if start:
                begun = self._after(f"tl.exp({start.lifted(rest)} - {top.name})", rest)
                whole += f" + {begun.name}"
            lanes = (Number(name, axes) for name in (scale, power, share))
            return _Exponentials(top, self._after(whole, rest), begun, *lanes)

        return self.lines.once(("exponentials", weight.name, start), write)

    def _best(self, value: Number, way: str) -> tuple[str, str, Number]:
        """The value of each lane's edge, the smallest or the largest of each lane, and that of the
        node; NaN if one is."""

        def write() -> tuple[str, str, Number]:
            axes, let = self._lanes(value), self.lines.let
            best, worst = self._start(axes, _WORST[way]), _WORST[way]
            each = let(self.lines.loop, self._each(value, axes, worst))
            better = f"({each} {_BETTER[way]} {best}) | ({each} != {each})"
            self.lines.late.append(f"{best} = tl.where({better}, {each}, {best})")
            bad = let(self.lines.after, f"tl.sum(({best} != {best}).to(tl.int32), 0)")
            text = f"tl.where({bad} > 0, float('nan'), tl.{way}({best}, 0))"
            return each, best, self._after(text, axes[1:])

        return self.lines.once((way, value.name), write)

    def _ties(self, value: Number, way: str) -> tuple[str, str]:
        """The smallest or the largest value, and how many edges have it."""
        each, best, joined = self._best(value, way)

        def write() -> str:
            axes = self._lanes(value)
            ties = self._start(axes, "0.0")
            equal = f"{ties} + ({each} == {best}).to(WIDE)"
            text = f"tl.where({each} {_BETTER[way]} {best}, 1.0, {equal})"
            self.lines.loop.append(f"{ties} = {self._each(text, axes, ties)}")
            text = f"tl.where({best} == {joined.lifted(axes)}, {ties}, 0.0)"
            return self._after(f"tl.sum({text}, 0)", axes[1:]).name

        return joined.name, self.lines.once((way, "ties", value.name), write)

    def _gaps(self, value: Number) -> tuple[str, str]:
        """The sums of the differences from the first edge's value, and of their squares.

        Each lane takes them from its own first edge: with ``n`` edges, and a first value that is
        ``d`` above the node's, it adds ``g + n d`` and ``s + 2 d g + n d d``.
        """

        def write() -> tuple[str, str]:
            axes, let = self._lanes(value), self.lines.let
            first, gaps, squares = (self._start(axes, "0.0") for _ in range(3))
            loop, after = self.lines.loop, self.lines.after
            loop.append(f"{first} = tl.where(first == begin, {value.lifted(axes)}, {first})")
            gap = let(loop, self._each(f"{value.lifted(axes)} - {first}", axes, "0.0"))
            loop.append(f"{gaps} += {gap}")
            loop.append(f"{squares} += {gap} * {gap}")
            lane = Number("lane", (LANE,)).lifted(axes)
            edges = let(after, f"((end - begin - {lane} + LANES - 1) // LANES).to(WIDE)")
            node = Number(let(after, f"tl.sum(tl.where({lane} == 0, {first}, 0.0), 0)"), axes[1:])
            above = let(after, f"tl.where({edges} > 0.0, {first} - {node.lifted(axes)}, 0.0)")
            sums = f"{gaps} + {edges} * {above}"
            more = f"{squares} + {above} * (2.0 * {gaps} + {edges} * {above})"
            return let(after, f"tl.sum({sums}, 0)"), let(after, f"tl.sum({more}, 0)")

        return self.lines.once(("gaps", value.name), write)
