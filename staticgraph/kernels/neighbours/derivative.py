"""The derivative of a program, which is made of programs.

Values are computed again in the derivative, so that nothing of the size of all edges is kept, but
for results of one row per edge. The gradient of rows of a node is a sum over its edges, into it or
out of it; that of rows of edges is one row per edge; that of a table is their sum by code;
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
_READS_ITSELF = ("min", "max", "std", "softmax", "logsumexp")
# The reductions whose results a derivative may read.
KEPT = {*_READS_ITSELF, *_COMPANIONS.values()}


def _places(program: Program) -> list[tuple[Result, int, int]]:
    """Every part of every result, the number of the result and the place in it."""
    return [
        (result._replace(reduction=how), number, place)
        for number, result in enumerate(program.results)
        for place, how in enumerate(result.reductions)
    ]


def _companion(part: Result) -> Result | None:
    """What the derivative of a part of a result needs besides it."""
    if part.reduction == "softmax":
        return Result(part.weight, "logsumexp", part.start_weight)
    how = _COMPANIONS.get(part.reduction)
    return None if how is None else Result(part.value, how)


@cache
def accompanied(program: Program) -> Program:
    """The program with the results that its derivative needs besides its own."""
    known = [part for part, _, _ in _places(program)]
    companions = {companion for companion in map(_companion, known) if companion is not None} - {
        *known
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
            result that it comes from; of one that is an operand as it is, -1 less its number.
    """

    program: Program
    results: tuple[int, ...]
    places: tuple[tuple[int, int], ...]


class _Slopes:
    """Gradients of a program's values, as values of its edges and of its nodes' own terms."""

    def __init__(self, builder: Builder) -> None:
        self.b: Builder = builder
        self._grads: dict[tuple[int, bool], int] = {}

    def get(self, place: int, own_term: bool) -> int | None:
        """The gradient of a value."""
        return self._grads.get((place, own_term))

    def add(self, place: int, own_term: bool, grad: int | None) -> None:
        """Adds to the gradient of a value."""
        if grad is None or self.b.is_nothing(grad):
            return
        grad = self.b.fit(grad, self.b.shape(place))
        old = self.get(place, own_term)
        self._grads[place, own_term] = grad if old is None else self.b.point("add", old, grad)


def derivative(
    program: Program,
    graded: tuple[int, ...],
    inputs: tuple[int, ...],
    into: tuple[int, ...] = (),
) -> Derivative:
    """The derivative of ``program`` (:func:`accompanied`) with respect to operands ``inputs``, from
    the gradients of results ``graded``; the gradients from elsewhere of operands ``into`` are added
    to theirs."""
    b = Builder()
    b.operands, b.values = list(program.operands), list(program.values)
    b._places = {repr(value): place for place, value in enumerate(b.values)}
    where = {part: position for part, *position in _places(program)}
    parts = [place for place in _places(program) if place[1] in graded]
    wanted = {part for part, *_ in parts if part.reduction in _READS_ITSELF}
    wanted |= {
        companion for companion in (_companion(part) for part, *_ in parts) if companion is not None
    }
    numbers = sorted({where[saved_part][0] for saved_part in wanted})
    rows = {index: b.operand("target", program.shape(program.results[index])) for index in numbers}
    ends = {"rows": "edge", "source_sum": "source", "table_sum": "table"}
    for number in graded:
        result = program.results[number]
        end = ends.get(result.reduction, "target")
        code = program.operands[result.table].code if end == "table" else -1
        rows[-1 - number] = b.operand(end, program.shape(result), code)

    def part_of(place: Sequence[int], whole: int) -> int:
        """One of the results that are side by side."""
        number, position = place
        result = program.results[number]
        if len(result.reductions) == 1:
            return whole
        shape = b.shape(result.value)
        return b.slice(whole, len(shape) - 1, position * shape[-1], (position + 1) * shape[-1])

    def saved(part: Result | None) -> int:
        """The value that reads a result of the program."""
        assert part is not None
        place = where[part]
        return part_of(place, rows[place[0]])

    more = {index: b.operand(*program.operands[index][:2]) for index in into}
    slopes = _Slopes(b)
    for part, *place in parts:
        _of_reduction(slopes, part, part_of(place, rows[-1 - place[0]]), saved)
    for own_term in (False, True):
        for place in reversed(range(len(program.values))):
            if (grad := slopes.get(place, own_term)) is not None:
                _step_back(slopes, place, own_term, grad)
    results: list[Result] = []
    places: list[tuple[int, int]] = []
    for place, value in enumerate(program.values):
        number = value.options[0] if value.operation == "operand" else -1
        operand = program.operands[number]
        if number in more:
            slopes.add(place, operand.place != "edge", more[number])
        grad, own_grad = slopes.get(place, False), slopes.get(place, True)
        if number not in inputs or grad is own_grad is None:
            continue
        if grad is None and own_grad is not None and b.values[own_grad].operation == "operand":
            places.append((number, -1 - b.values[own_grad].options[0]))
            continue
        grad = b.expand(b.nothing() if grad is None else grad, operand.shape)
        gradient = Result(grad, _GRADIENTS.get(operand.place, "rows"))
        if own_grad is not None:
            gradient = gradient._replace(start=b.expand(own_grad, operand.shape))
        if operand.place == "table":
            gradient = gradient._replace(reduction="table_sum", table=number)
        if gradient not in results:
            results.append(gradient)
        places.append((number, results.index(gradient)))
    return Derivative(b.program(results), tuple(numbers), tuple(places))


# How the gradients of edges are reduced to those of operands in a place.
_GRADIENTS = {"source": "source_sum", "target": "sum", "all": "sum"}


def _of_reduction(
    slopes: _Slopes, part: Result, grad: int, saved: Callable[[Result | None], int]
) -> None:
    """Adds the gradients of the values of a reduction, from its own."""
    b, how = slopes.b, part.reduction
    if how in ("softmax", "logsumexp"):
        for own_term in (False, True):
            value, weight = (
                (part.start, part.start_weight) if own_term else (part.value, part.weight)
            )
            if value < 0:
                continue
            if how == "logsumexp":
                share = b.point("exp", b.point("sub", value, saved(part)))
                slopes.add(value, own_term, b.point("mul", grad, share))
                continue
            share = b.point("exp", b.point("sub", weight, saved(_companion(part))))
            shape = b.shape(value)
            less = b.leading(b.point("mul", grad, saved(part)), b.shape(weight))
            each = b.leading(b.point("mul", grad, value), b.shape(weight))
            slopes.add(weight, own_term, b.point("mul", share, b.point("sub", each, less)))
            slopes.add(value, own_term, b.point("mul", b.trailing(share, shape), grad))
    elif how in ("sum", "rows", "source_sum", "table_sum"):
        slopes.add(part.value, False, grad)
        if part.start >= 0:
            slopes.add(part.start, True, grad)
    else:
        slopes.add(part.value, False, _of_simple(b, part, grad, saved))


def _of_simple(b: Builder, part: Result, grad: int, saved: Callable[[Result | None], int]) -> int:
    """The gradient of an edge's value, from that of its mean, extremum or deviation."""
    value, how = part.value, part.reduction
    if how in ("min", "max"):
        ours = b.point("eq", value, saved(part))
        return b.point("where", ours, b.point("div", grad, saved(_companion(part))), 0.0)
    grad = b.point("mul", grad, b.share())
    if how == "mean":
        return grad
    away = b.point("sub", value, saved(_companion(part)))
    if how == "var":
        return b.point("mul", b.point("mul", grad, 2.0), away)
    root = saved(part)
    spread = b.point("lt", 0.0, root)
    slope = b.point("div", b.point("mul", grad, away), b.point("where", spread, root, 1.0))
    return b.point("where", spread, slope, 0.0)


def _step_back(slopes: _Slopes, place: int, own_term: bool, grad: int) -> None:
    """Adds to the gradients of a value's arguments."""
    b = slopes.b

    def add(value: int, slope: int | None) -> None:
        """Adds to that of one of them."""
        slopes.add(value, own_term, slope)

    operation, arguments, shape, options = b.values[place]
    if operation in POINTWISE:
        of_arguments = POINTWISE[operation].slopes
        if of_arguments is not None:
            each = of_arguments(b, arguments, place, grad)
            for argument, slope in zip(arguments, each, strict=True):
                add(argument, slope)
    elif operation == "view":
        add(arguments[0], b.view(grad, b.shape(arguments[0])))
    elif operation == "expand":
        add(arguments[0], grad)
    elif operation == "slice":
        dim, first, last = options
        whole = b.shape(arguments[0])
        sides = [b.nothing(_with(whole, dim, size)) for size in (first, whole[dim] - last)]
        parts = [sides[0], grad, sides[1]]
        add(arguments[0], b.cat([part for part in parts if b.shape(part)[dim]], dim))
    elif operation == "cat":
        first = 0
        for argument in arguments:
            last = first + b.shape(argument)[options[0]]
            add(argument, b.slice(grad, options[0], first, last))
            first = last
    elif operation == "permute":
        add(arguments[0], b.permute(grad, [options.index(dim) for dim in range(len(options))]))
    elif operation == "total":
        whole = b.shape(arguments[0])
        shape = tuple(1 if dim in options else size for dim, size in enumerate(whole))
        add(arguments[0], b.expand(b.view(grad, shape), whole))


def _with(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])
