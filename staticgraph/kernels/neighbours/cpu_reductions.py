"""Reductions over a node's edges in LLVM's language: running values in registers.

A sum weighted by a softmax goes over the edges twice, first for the largest weight, then for the
exponentials: rows of weights are short, and still in the cache the second time.
"""

# llvmlite is not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from staticgraph.kernels.neighbours.cpu_operations import OPERATIONS, Numbers
from staticgraph.kernels.neighbours.cpu_vectors import (
    LONG,
    Block,
    Index,
    blocks,
    count,
    flat,
    inverse,
    lane,
    spread,
)
from staticgraph.kernels.neighbours.program import LEAST_VARIANCE, Result, Shape

# What is written, of cpu_code, which imports this file.
Function = Any


def reductions(function: Function, builder: ir.IRBuilder) -> tuple[list[Powers], list[Reduction]]:
    """What is reduced of a node: exponentials of weights, and all results, which may share them."""
    powers: dict[tuple[int, int], Powers] = {}
    results: list[Reduction] = []
    for number, result in enumerate(function.program.results):
        weight = result.value, result.start
        if result.reduction == "softmax":
            weight = result.weight, result.start_weight
        if result.reduction in ("softmax", "logsumexp"):
            if weight not in powers:
                powers[weight] = Powers(function, builder, *weight)
            kind = Softmax if result.reduction == "softmax" else Logarithm
            results.append(kind(function, builder, number, powers[weight]))
        elif result.reduction in ("rows", "table_sum") or (
            result.reduction == "source_sum" and function.into
        ):
            results.append(Rows(function, builder, number))
        else:
            results += [
                Running(function, builder, number, part) for part in range(len(result.reductions))
            ]
    return list(powers.values()), results


class Reduction:
    """A result of a program, or one of its parts side by side.

    Attributes:
        reads_edges: whether edges add anything to it.
    """

    def __init__(
        self, function: Function, builder: ir.IRBuilder, number: int, part: int = 0
    ) -> None:
        self.f: Function = function
        self.builder: ir.IRBuilder = builder
        self.number: int = number
        self.result: Result = function.program.results[number]
        self.reduction: str = self.result.reductions[part]
        self.value: int = self.result.value
        self.shape: Shape = function.program.values[self.value].shape
        self.whole: Shape = function.program.shape(self.result)
        self.first: int = part * self.shape[-1] if self.shape else 0
        self.blocks: list[Block] = blocks(self.shape, function.lanes)
        self.base: Any = function.entry.inttoptr(
            function.results[number], function.real.as_pointer()
        )
        zero = function.program.values[self.value]
        sums = self.reduction in ("sum", "mean", "source_sum")
        self.reads_edges: bool = not (sums and zero.operation == "number" and not zero.options[0])

    def row(self, b: ir.IRBuilder, index: Any) -> Any:
        """The address of a row of the result."""
        return b.gep(self.base, [b.mul(index, LONG(math.prod(self.whole)))], inbounds=True)

    def place(self, index: Index) -> int:
        """Where the numbers from ``index`` on are in a row of the result."""
        return flat(index, self.whole) + self.first

    def fresh(self, like: Block, start: float | Any) -> Any:
        """A running value, from a number or a vector of them."""
        kind = self.f.kind(like[1])
        place = self.f.entry.alloca(kind)
        if isinstance(start, float):
            start = ir.Constant(kind, start if like[1] == 1 else [start] * like[1])
        self.f.outer.store(start, place)
        return place

    def add(self) -> None:
        """Adds an edge."""
        raise NotImplementedError

    def finish(self) -> None:
        """Stores the result of the node."""


class Rows(Reduction):
    """One row per edge, or rows that are added at once, to those of sources or of a table."""

    def begin(self, builder: ir.IRBuilder) -> None:
        """Stores the node's own term, before the edges of any node."""
        row = self.row(builder, self.f.own)
        for index, lanes in self.blocks:
            self.f.store(
                builder, self.f.own_vector(self.result.start, index, lanes), row, self.place(index)
            )

    def add(self) -> None:
        """Adds an edge."""
        f, b = self.f, self.f.inner
        row, scatters = self.row(b, f.edge), self.reduction != "rows"
        if self.reduction == "source_sum":
            row = self.row(b, f.other)
        elif scatters:
            code = f.code(f.program.operands[self.result.table].code)
            table = b.mul(f.piece, f.sizes[self.number])
            row = b.gep(self.row(b, code), [table], inbounds=True)
        for index, lanes in self.blocks:
            place = self.place(index)
            if scatters:
                value = f.added(self.value, index, lanes, f.load(b, row, place, lanes))
            else:
                value = f.vector(self.value, index, lanes)
            f.store(b, value, row, place)


class Running(Reduction):
    """A sum, a mean, an extremum or a deviation."""

    def __init__(self, function: Function, builder: ir.IRBuilder, number: int, part: int) -> None:
        super().__init__(function, builder, number, part)
        many = {"var": 3, "std": 3, "min_ties": 2, "max_ties": 2}.get(self.reduction, 1)
        first: Any = {"min": math.inf, "max": -math.inf}.get(self.reduction[:3], 0.0)
        self.running: list[list[Any]] = []
        for index, lanes in self.blocks:
            if self.result.start >= 0:
                first = function.own_vector(self.result.start, index, lanes)
            self.running.append(
                [self.fresh((index, lanes), 0.0 if n else first) for n in range(many)]
            )

    def add(self) -> None:
        """Adds an edge."""
        f, b = self.f, self.f.inner
        for (index, lanes), places in zip(self.blocks, self.running, strict=True):
            old = [b.load(place) for place in places]
            if self.reduction in ("sum", "mean", "source_sum"):
                b.store(f.added(self.value, index, lanes, old[0]), places[0])
                continue
            value = f.vector(self.value, index, lanes)
            for place, new in zip(places, self._next(b, value, old), strict=True):
                b.store(new, place)

    def _next(self, b: ir.IRBuilder, value: Any, old: list[Any]) -> list[Any]:
        n = Numbers(b, self.f.double)
        if self.reduction[:3] in ("min", "max"):
            pair = (value, old[0]) if self.reduction.startswith("min") else (old[0], value)
            better = n.less(*pair)
            takes = b.or_(better, b.fcmp_unordered("uno", value, value))
            best = b.select(takes, value, old[0])
            if len(old) == 1:
                return [best]
            one, zero = n.constant(value, 1.0), n.constant(value, 0.0)
            equal = b.select(b.fcmp_ordered("==", value, old[0]), one, zero)
            return [best, b.select(better, one, b.fadd(old[1], equal))]
        first = b.select(spread(b, self.f.first, count(value)), value, old[0])
        gap = b.fsub(value, first)
        return [first, b.fadd(old[1], gap), n.fma(gap, gap, old[2])]

    def finish(self) -> None:
        """Stores the result of the node."""
        f, b = self.f, self.builder
        row = self.row(b, f.own)
        degree = b.sub(f.end, f.begin)
        share = inverse(b, degree, f.real)
        empty = b.icmp_signed("==", degree, LONG(0))
        for (index, lanes), places in zip(self.blocks, self.running, strict=True):
            values = [b.load(place) for place in places]
            value = self._last(b, values, spread(b, share, lanes), spread(b, empty, lanes))
            f.store(b, value, row, self.place(index))

    def _last(self, b: ir.IRBuilder, values: list[Any], share: Any, empty: Any) -> Any:
        n = Numbers(b, self.f.double)
        zero = n.constant(values[0], 0.0)
        if self.reduction in ("min", "max"):
            return b.select(empty, zero, values[0])
        if self.reduction in ("min_ties", "max_ties"):
            one = n.constant(zero, 1.0)
            best = b.select(empty, zero, values[0])
            return b.fadd(values[1], b.select(b.fcmp_ordered("==", best, zero), one, zero))
        if self.reduction == "mean":
            return b.fmul(values[0], share)
        if self.reduction in ("var", "std"):
            gap = b.fmul(values[1], share)
            value = n.fma(b.fneg(gap), gap, b.fmul(values[2], share))
            if self.reduction == "var":
                return value
            root = OPERATIONS["sqrt"](n, value)
            small = b.fcmp_ordered("<=", value, n.constant(value, LEAST_VARIANCE))
            return b.select(small, zero, root)
        return values[0]


class Powers:
    """The largest weight of a node's edges, and the exponentials of weights less than it.

    Args:
        weight: place of the value.
        start: place of the node's own weight, or -1.
    """

    def __init__(self, function: Function, builder: ir.IRBuilder, weight: int, start: int) -> None:
        self.f: Function = function
        self.builder: ir.IRBuilder = builder
        self.weight: int = weight
        self.start: int = start
        self.shape: Shape = function.program.values[weight].shape
        self.blocks: list[Block] = blocks(self.shape, function.lanes)
        self.best: list[Any] = []
        self.total: list[Any] = []
        self._powers: dict[Index, Any] = {}
        for index, lanes in self.blocks:
            kind = function.kind(lanes)
            low: Any = ir.Constant(kind, -math.inf if lanes == 1 else [-math.inf] * lanes)
            best, total = (function.entry.alloca(kind) for _ in range(2))
            function.outer.store(
                function.own_vector(start, index, lanes) if start >= 0 else low, best
            )
            self.best.append(best)
            self.total.append(total)

    def compare(self) -> None:
        """Takes an edge's weight, in the first loop."""
        b = self.f.inner
        n = Numbers(b, self.f.double)
        for (index, lanes), best in zip(self.blocks, self.best, strict=True):
            old, value = b.load(best), self.f.vector(self.weight, index, lanes)
            takes = b.or_(n.less(old, value), b.fcmp_unordered("uno", value, value))
            b.store(b.select(takes, value, old), best)

    def begin(self, b: ir.IRBuilder) -> None:
        """Starts the sums of exponentials, between the loops; those of -inf alone are zero."""
        n = Numbers(b, self.f.double)
        for (index, lanes), best, total in zip(self.blocks, self.best, self.total, strict=True):
            most = b.load(best)
            value = n.constant(most, 0.0)
            none = b.fcmp_ordered("==", most, n.constant(most, -math.inf))
            b.store(b.select(none, value, most), best)
            if self.start >= 0:
                term = self.f.own_vector(self.start, index, lanes)
                value = n.exp(b.fsub(term, b.load(best)))
            self._powers[index] = value
            b.store(value, total)

    def add(self) -> None:
        """Adds an edge, in the second loop."""
        b = self.f.inner
        for (index, lanes), best, total in zip(self.blocks, self.best, self.total, strict=True):
            gap = b.fsub(self.f.vector(self.weight, index, lanes), b.load(best))
            self._powers[index] = Numbers(b, self.f.double).exp(gap)
            b.store(b.fadd(b.load(total), self._powers[index]), total)

    def share(self, b: ir.IRBuilder, index: Index, lanes: int) -> Any:
        """The newest exponentials, for the numbers of a weighed row from ``index`` on."""
        return self._along(b, self._powers, index, lanes)

    def inverse(self, b: ir.IRBuilder, index: Index, lanes: int) -> Any:
        """One over the sum of exponentials, zero without any."""
        inverses = {}
        for (place, _), total in zip(self.blocks, self.total, strict=True):
            value = b.load(total)
            n = Numbers(b, self.f.double)
            zero, one = n.constant(value, 0.0), n.constant(value, 1.0)
            none = b.fcmp_ordered("==", value, zero)
            inverses[place] = b.select(none, zero, b.fdiv(one, value))
        return self._along(b, inverses, index, lanes)

    def _along(self, b: ir.IRBuilder, vectors: dict[Index, Any], index: Index, lanes: int) -> Any:
        if len(index) == len(self.shape):
            return vectors[index]
        index = index[: len(self.shape)]
        for place, length in self.blocks:
            if place[:-1] == index[:-1] and (
                not place or place[-1] <= index[-1] < place[-1] + length
            ):
                return spread(
                    b, lane(b, vectors[place], index[-1] - place[-1] if place else 0), lanes
                )
        raise AssertionError(index)


class Softmax(Reduction):
    """A sum weighted by a softmax: the weighted sum of exponentials, over theirs."""

    def __init__(
        self, function: Function, builder: ir.IRBuilder, number: int, powers: Powers
    ) -> None:
        super().__init__(function, builder, number)
        self.powers: Powers = powers
        self.running: list[Any] = [function.entry.alloca(function.kind(n)) for _, n in self.blocks]

    def begin(self, builder: ir.IRBuilder) -> None:
        """Starts from the node's own term, between the loops."""
        for (index, lanes), place in zip(self.blocks, self.running, strict=True):
            kind = self.f.kind(lanes)
            value: Any = ir.Constant(kind, 0.0 if lanes == 1 else [0.0] * lanes)
            if self.result.start >= 0:
                term = self.f.own_vector(self.result.start, index, lanes)
                value = builder.fmul(self.powers.share(builder, index, lanes), term)
            builder.store(value, place)

    def add(self) -> None:
        """Adds an edge."""
        b = self.f.inner
        for (index, lanes), place in zip(self.blocks, self.running, strict=True):
            share = self.powers.share(b, index, lanes)
            value = self.f.vector(self.value, index, lanes)
            b.store(Numbers(b, self.f.double).fma(share, value, b.load(place)), place)

    def finish(self) -> None:
        """Stores the result of the node."""
        b = self.builder
        row = self.row(b, self.f.own)
        for (index, lanes), place in zip(self.blocks, self.running, strict=True):
            value = b.fmul(b.load(place), self.powers.inverse(b, index, lanes))
            self.f.store(b, value, row, self.place(index))


class Logarithm(Softmax):
    """The logarithm of the sum of exponentials."""

    def begin(self, builder: ir.IRBuilder) -> None:
        """Needs nothing but the exponentials."""

    def add(self) -> None:
        """Needs nothing but the exponentials."""

    def finish(self) -> None:
        """Stores the result of the node."""
        b = self.builder
        row = self.row(b, self.f.own)
        n = Numbers(b, self.f.double)
        for (index, _), best, total in zip(
            self.blocks, self.powers.best, self.powers.total, strict=True
        ):
            summed = b.load(total)
            zero = n.constant(summed, 0.0)
            value = b.fadd(b.load(best), n.log(summed))
            value = b.select(b.fcmp_ordered("==", summed, zero), zero, value)
            self.f.store(b, value, row, self.place(index))
