"""Writes the loop of a program over nodes and their edges as the text of a Triton kernel.

One Triton program per node goes over the node's edges in order, with the running values in
registers, as the kernels that are written by hand do; nothing is added atomically. A row is a tile
with one axis per dimension, or with one for several where no value needs them one by one. A
concatenation is cut where its parts meet: into several results, or into several sums where it is
summed.

A softmax takes the same loop: its sums are multiplied by an exponential, one per edge and weight,
whenever the maximum grows. A loop for the maximum alone would compute the weights twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from staticgraph.kernels.neighbours.gpu_index import Axis, Index, along, flat, unflat
from staticgraph.kernels.neighbours.gpu_lines import Number
from staticgraph.kernels.neighbours.gpu_operations import SQRT
from staticgraph.kernels.neighbours.gpu_values import MustCut, NotMerged, Values
from staticgraph.kernels.neighbours.program import LEAST_VARIANCE, Program, Result

Term = Number | None
# Numbers of the largest tile; more would spill registers.
MAX_TILE = 8192
# The smallest float32, from which a maximum starts: -inf less this is -inf, and no NaN.
LEAST = -3.4028234663852886e38
_BETTER = {"min": "<", "max": ">"}


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
        edge = [f"    {line}" for line in lines.loop + lines.late]
        body = [
            "node = tl.program_id(0).to(tl.int64)",
            f"begin = tl.load({pointer} + node).to(tl.int64)",
            f"end = tl.load({pointer} + node + 1).to(tl.int64)",
            *lines.setup,
            *lines.before,
            *(["for place in range(begin, end):", *edge] if edge else []),
            *lines.after,
        ]
        arguments = ", ".join(lines.arguments)
        head = f"@triton.jit\ndef NAME({arguments}, WIDE: tl.constexpr):\n"
        source = head + "".join(f"    {line}\n" for line in body)
        return Text(source, tuple(lines.arguments), lines.largest)

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
        where, row = (lines.loop, self.edge()) if rows else (lines.after, "node")
        whole = self.program.shape(result)
        text = f"{lines.argument(name)} + {row} * {math.prod(whole)}"
        row = lines.once(name, lambda: lines.let(where, text))
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
            best, whole, *_ = self._exponentials(value, start)
            text = f"{best.name} + tl.log({whole.name})"
            return self._after(f"tl.where({whole.name} == 0.0, 0.0, {text})", whole.axes)
        return self._after(self._simple(value, reduction), value.axes)

    def _simple(self, value: Number, reduction: str) -> str:
        """The expression of a reduction without start and weights."""
        if reduction == "mean":
            return f"{self._sum(value).name} * {self.share().name}"
        if reduction in ("min", "max"):
            return f"tl.where(begin == end, 0.0, {self._best(value, reduction)})"
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

    def _start(self, axes: tuple[Axis, ...], start: str, more: str = "") -> str:
        """A running value, before the first edge."""
        shape = f"[{', '.join(str(axis.block) for axis in axes)}]" if axes else "()"
        return self.lines.let(self.lines.before, f"tl.full({shape}, {start}, WIDE){more}")

    def _sum(self, value: Number, start: Term = None) -> Number:
        """The sum of a value, and of what the node starts from."""

        def write() -> Number:
            axes = self.lines.tile(value, start)
            more = f" + {start.lifted(axes)}" if start else ""
            total = self._start(axes, "0.0", more)
            self.lines.late.append(f"{total} += {value.lifted(axes)}")
            return Number(total, axes)

        return self.lines.once(("sum", value.name, start), write)

    def _softmax(self, value: Number, start: Term, weight: Number, start_weight: Term) -> Number:
        """The sum of a value, weighted by a softmax."""
        _, whole, scale, power = self._exponentials(weight, start_weight)
        axes = self.lines.tile(value, whole, start)
        more = f" + {whole.lifted(axes)} * {start.lifted(axes)}" if start else ""
        total = self._start(axes, "0.0", more)
        text = f"{total} * {scale.lifted(axes)} + {power.lifted(axes)} * {value.lifted(axes)}"
        self.lines.late.append(f"{total} = {text}")
        some = self._after(f"tl.where({whole.name} == 0.0, 1.0, {whole.name})", whole.axes)
        return self._after(f"{total} / {some.lifted(axes)}", axes)

    def _exponentials(self, weight: Number, start: Term) -> tuple[Number, ...]:
        """The largest weight and the sum of exponentials, less the largest; for each edge, what
        sums up to it are multiplied by, and its exponential."""

        def write() -> tuple[Number, ...]:
            lines = self.lines
            axes = lines.tile(weight, start)
            best, more = self._start(axes, repr(LEAST)), ""
            if start:
                lines.before.append(f"{best} = tl.maximum({best}, {start.lifted(axes)})")
                more = f" + tl.exp({start.lifted(axes)} - {best})"
            whole = self._start(axes, "0.0", more)
            gap = lines.let(lines.loop, f"{weight.lifted(axes)} - {best}")
            fall = lines.let(lines.loop, f"tl.exp(-tl.abs({gap}))")
            scale = lines.let(lines.loop, f"tl.where({gap} > 0.0, {fall}, 1.0)")
            power = lines.let(lines.loop, f"tl.where({gap} > 0.0, 1.0, {fall})")
            lines.late.append(f"{whole} = {whole} * {scale} + {power}")
            lines.late.append(f"{best} = tl.maximum({best}, {weight.lifted(axes)})")
            return tuple(Number(name, axes) for name in (best, whole, scale, power))

        return self.lines.once(("exponentials", weight.name, start), write)

    def _best(self, value: Number, way: str) -> str:
        """The smallest or the largest value; NaN if one is."""

        def write() -> str:
            best = self._start(value.axes, f"float('{'' if way == 'min' else '-'}inf')")
            better = f"({value.name} {_BETTER[way]} {best}) | ({value.name} != {value.name})"
            self.lines.late.append(f"{best} = tl.where({better}, {value.name}, {best})")
            return best

        return self.lines.once((way, value.name), write)

    def _ties(self, value: Number, way: str) -> tuple[str, str]:
        """The smallest or the largest value, and how many edges have it."""
        best = self._best(value, way)

        def write() -> str:
            ties = self._start(value.axes, "0.0")
            equal = f"{ties} + ({value.name} == {best}).to(WIDE)"
            text = f"tl.where({value.name} {_BETTER[way]} {best}, 1.0, {equal})"
            self.lines.loop.append(f"{ties} = {text}")
            return ties

        return best, self.lines.once((way, "ties", value.name), write)

    def _gaps(self, value: Number) -> tuple[str, str]:
        """The sums of the differences from the first edge's value, and of their squares."""

        def write() -> tuple[str, str]:
            first, gaps, squares = (self._start(value.axes, "0.0") for _ in range(3))
            loop = self.lines.loop
            loop.append(f"{first} = tl.where(place == begin, {value.name}, {first})")
            gap = self.lines.let(loop, f"{value.name} - {first}")
            loop.append(f"{gaps} += {gap}")
            loop.append(f"{squares} += {gap} * {gap}")
            return gaps, squares

        return self.lines.once(("gaps", value.name), write)
