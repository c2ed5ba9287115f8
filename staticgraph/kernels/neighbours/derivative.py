"""The derivative of a program, which is made of programs.

Values are computed again in the derivative, so that nothing of the size of all edges is kept, but
for results of one row per edge. The gradient of rows of a node is a sum over its edges, into it or
out of it; that of rows of edges is one row per edge; that of a table is such rows, summed by code;
and that of the one row for all is a sum over edges and then over nodes. Since all of this is a
program again, second derivatives need nothing of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from staticgraph.kernels.neighbours.operations import POINTWISE
from staticgraph.kernels.neighbours.program import Builder, Program, Result

# What the derivative of a reduction needs besides its result.
_COMPANIONS = {"min": "min_ties", "max": "max_ties", "var": "mean", "std": "mean"}
# The reductions whose own result the derivative reads.
_READS_ITSELF = ("min", "max", "std")
# The reductions whose results a derivative may read.
KEPT = {*_READS_ITSELF, *_COMPANIONS.values()}


def _places(program: Program) -> list[tuple[int, str, int, int]]:
    """Value, reduction, number of the result and place in it, of every part of every result."""
    return [
        (result.value, how, number, place)
        for number, result in enumerate(program.results)
        for place, how in enumerate(result.reductions)
    ]


@cache
def accompanied(program: Program) -> Program:
    """The program with the results that its derivative needs besides its own."""
    known = {(value, how) for value, how, _, _ in _places(program)}
    companions = {
        Result(value, _COMPANIONS[how])
        for value, how in known
        if how in _COMPANIONS and (value, _COMPANIONS[how]) not in known
    }
    return replace(program, results=(*program.results, *sorted(companions)))


@dataclass(frozen=True)
class Derivative:
    """The derivative of an accompanied program.

    Attributes:
        program: its operands are those of the program, then :attr:`results`, then one gradient for
            each of ``graded``, then the gradients from elsewhere of operands.
        results: numbers of the program's results that it reads.
        places: for each operand whose gradient was asked for, and has one, the number of the
            result that it comes from.
    """

    program: Program
    results: tuple[int, ...]
    places: tuple[tuple[int, int], ...]


@cache
def derivative(
    program: Program,
    graded: tuple[int, ...],
    asked: tuple[int, ...],
    into: tuple[int, ...] = (),
) -> Derivative:
    """The derivative of ``program`` (:func:`accompanied`) with respect to operands ``asked``, from
    the gradients of results ``graded``; the gradients from elsewhere of operands ``into`` are added
    to theirs."""
    b = Builder()
    b.operands, b.values = list(program.operands), list(program.values)
    b._places = {value: place for place, value in enumerate(b.values)}
    where = {(value, how): at for value, how, *at in _places(program)}
    parts = [place for place in _places(program) if place[2] in graded]
    wanted = {(value, how) for value, how, *_ in parts if how in _READS_ITSELF}
    wanted |= {(value, _COMPANIONS[how]) for value, how, *_ in parts if how in _COMPANIONS}
    numbers = sorted({where[one][0] for one in wanted})
    rows = {one: b.operand("target", program.shape(program.results[one])) for one in numbers}
    ends = {"rows": "edge", "source_sum": "source"}
    for number in graded:
        result = program.results[number]
        end = ends.get(result.reduction, "target")
        rows[-1 - number] = b.operand(end, program.shape(result))

    def part(place: Sequence[int], whole: int) -> int:
        """One of the results that are side by side."""
        number, at = place
        result = program.results[number]
        if len(result.reductions) == 1:
            return whole
        shape = b.shape(result.value)
        return b.slice(whole, len(shape) - 1, at * shape[-1], (at + 1) * shape[-1])

    def saved(value: int, how: str) -> int:
        """The value that reads a result of the program."""
        place = where[value, how]
        return part(place, rows[place[0]])

    elsewhere = {one: len(b.operands) + at for at, one in enumerate(into)}
    more = {one: b.operand(*program.operands[one][:2]) for one in into}
    grads: dict[int, int] = {}

    def add(place: int, grad: int | None) -> None:
        """Adds to the gradient of a value."""
        if grad is not None and not b.is_number(grad, 0.0):
            grad = b.fit(grad, b.shape(place))
            grads[place] = b.point("add", grads[place], grad) if place in grads else grad

    for value, how, *place in parts:
        add(value, _of_reduction(b, value, how, part(place, rows[-1 - place[0]]), saved))
    for place in reversed(range(len(program.values))):
        if place in grads:
            _step_back(b, place, grads[place], add)
    reductions = {"source": "source_sum", "target": "sum", "all": "sum"}
    results: list[Result] = []
    places: list[tuple[int, int]] = []
    for place, value in enumerate(program.values):
        number = value.options[0] if value.operation == "operand" else -1
        operand = program.operands[number]
        how, start = reductions.get(operand.place, "rows"), elsewhere.get(number, -1)
        if number in elsewhere and how == "rows":
            add(place, more[number])
            start = -1
        if number not in asked or (place not in grads and start < 0):
            continue
        grad = b.expand(grads.get(place, b.number(0)), operand.shape)
        one = Result(grad, how, start)
        if one not in results:
            results.append(one)
        places.append((number, results.index(one)))
    return Derivative(b.program(results), tuple(numbers), tuple(places))


def _of_reduction(
    b: Builder, value: int, how: str, grad: int, saved: Callable[[int, str], int]
) -> int:
    """The gradient of an edge's value, from that of its reduction."""
    if how in ("sum", "rows", "source_sum"):
        return grad
    if how in ("min", "max"):
        ours = b.point("eq", value, saved(value, how))
        return b.point("where", ours, b.point("div", grad, saved(value, _COMPANIONS[how])), 0.0)
    grad = b.point("mul", grad, b.share())
    if how == "mean":
        return grad
    away = b.point("sub", value, saved(value, "mean"))
    if how == "var":
        return b.point("mul", b.point("mul", grad, 2.0), away)
    root = saved(value, how)
    spread = b.point("lt", 0.0, root)
    slope = b.point("div", b.point("mul", grad, away), b.point("where", spread, root, 1.0))
    return b.point("where", spread, slope, 0.0)


def _step_back(b: Builder, place: int, grad: int, add: Callable[[int, int | None], None]) -> None:
    """Adds to the gradients of a value's arguments."""
    operation, arguments, shape, options = b.values[place]
    if operation in POINTWISE:
        slopes = POINTWISE[operation].slopes
        if slopes is not None:
            for one, slope in zip(arguments, slopes(b, arguments, place, grad), strict=True):
                add(one, slope)
    elif operation == "view":
        add(arguments[0], b.view(grad, b.shape(arguments[0])))
    elif operation == "expand":
        add(arguments[0], grad)
    elif operation == "slice":
        dim, first, last = options
        whole = b.shape(arguments[0])
        sides = [b.number(0, _with(whole, dim, size)) for size in (first, whole[dim] - last)]
        parts = [sides[0], grad, sides[1]]
        add(arguments[0], b.cat([one for one in parts if b.shape(one)[dim]], dim))
    elif operation == "cat":
        first = 0
        for one in arguments:
            last = first + b.shape(one)[options[0]]
            add(one, b.slice(grad, options[0], first, last))
            first = last
    elif operation == "permute":
        add(arguments[0], b.permute(grad, [options.index(dim) for dim in range(len(options))]))
    elif operation == "total":
        whole = b.shape(arguments[0])
        shape = tuple(1 if dim in options else size for dim, size in enumerate(whole))
        add(arguments[0], b.expand(b.view(grad, shape), whole))


def _with(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])
