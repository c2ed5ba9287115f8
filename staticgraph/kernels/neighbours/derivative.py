"""The derivative of a program, which is made of programs.

Values are computed again in the derivative, so that nothing of the size of all edges is kept, but
for results of one row per edge. The gradient of rows of a node is a sum over its edges, into it or
out of it; that of rows of edges is one row per edge; that of a table is such rows, summed by code;
and that of the one row for all is a sum over edges and then over nodes. Since all of this is a
program again, second derivatives need nothing of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from staticgraph.kernels.neighbours.operations import POINTWISE
from staticgraph.kernels.neighbours.program import Builder, Program, Result

# What the derivative of a reduction needs besides its result.
_COMPANIONS = {"min": "min_ties", "max": "max_ties", "var": "mean", "std": "mean"}
# The reductions whose own result the derivative reads.
_READS_ITSELF = ("min", "max", "std")
# The reductions whose results a derivative may read.
KEPT = (*_READS_ITSELF, *dict.fromkeys(_COMPANIONS.values()))


def companions(program: Program) -> list[Result]:
    """The results that the derivative needs besides the program's own."""
    found: list[Result] = []
    for value, reduction in program.results:
        beside = _COMPANIONS.get(reduction)
        one = None if beside is None else Result(value, beside)
        if one is not None and one not in (*program.results, *found):
            found.append(one)
    return found


@lru_cache(maxsize=None)
def accompanied(program: Program) -> Program:
    """The program with its companions as further results."""
    return replace(program, results=(*program.results, *companions(program)))


@dataclass(frozen=True)
class Derivative:
    """The derivative of an accompanied program.

    Attributes:
        program: its operands are those of the program, then :attr:`results`, then one gradient for
            each of :attr:`graded`.
        results: numbers of the program's results that it reads.
        graded: numbers of the program's results whose gradients it reads.
        places: for each operand whose gradient was asked for, and has one, the number of the
            result that it comes from.
    """

    program: Program
    results: tuple[int, ...]
    graded: tuple[int, ...]
    places: tuple[tuple[int, int], ...]


@lru_cache(maxsize=None)
def derivative(program: Program, graded: tuple[int, ...], asked: tuple[int, ...]) -> Derivative:
    """The derivative of ``program`` (:func:`accompanied`) with respect to operands ``asked``, from
    the gradients of results ``graded``."""
    b = Builder()
    b.operands, b.values = list(program.operands), list(program.values)
    b._places = {value: place for place, value in enumerate(b.values)}
    numbers = {result: number for number, result in enumerate(program.results)}
    read: dict[int, int] = {}

    def result(found: Result) -> int:
        """The value that reads a result of the program, at the target."""
        number = numbers[found]
        if number not in read:
            read[number] = b.operand("target", program.shape(found))
        return read[number]

    needed = [one for one in map(program.results.__getitem__, graded)]
    for found in needed:
        if found.reduction in _READS_ITSELF:
            result(found)
        if found.reduction in _COMPANIONS:
            result(Result(found.value, _COMPANIONS[found.reduction]))
    grads: dict[int, int] = {}

    def add(place: int, grad: int | None) -> None:
        """Adds to the gradient of a value."""
        if grad is not None and not b.is_number(grad, 0.0):
            grad = b.fit(grad, b.shape(place))
            grads[place] = b.point("add", grads[place], grad) if place in grads else grad

    for found in needed:
        add(found.value, _of_reduction(b, found, program, result))
    for place in reversed(range(len(program.values))):
        if place in grads:
            _step_back(b, place, grads[place], add)
    reductions = {"source": "source_sum", "target": "sum", "all": "sum"}
    results: list[Result] = []
    places: list[tuple[int, int]] = []
    for place, value in enumerate(program.values):
        if value.operation != "operand" or place not in grads or value.options[0] not in asked:
            continue
        operand = program.operands[value.options[0]]
        one = Result(
            b.expand(grads[place], operand.shape), reductions.get(operand.place, "rows")
        )
        if one not in results:
            results.append(one)
        places.append((value.options[0], results.index(one)))
    return Derivative(b.program(results), tuple(read), graded, tuple(places))


def _of_reduction(b: Builder, found: Result, program: Program, result: object) -> int:
    """The gradient of an edge's value, from that of a result."""
    at: object = result
    assert callable(at)
    value, reduction = found
    where = {"rows": "edge", "source_sum": "source"}.get(reduction, "target")
    grad = b.operand(where, program.shape(found))
    if reduction in ("sum", "rows", "source_sum"):
        return grad
    if reduction in ("min", "max"):
        ties = at(Result(value, _COMPANIONS[reduction]))
        ours = b.point("eq", value, at(found))
        return b.point("where", ours, b.point("div", grad, ties), 0.0)
    grad = b.point("mul", grad, b.share())
    if reduction == "mean":
        return grad
    away = b.point("sub", value, at(Result(value, "mean")))
    if reduction == "var":
        return b.point("mul", b.point("mul", grad, 2.0), away)
    root = at(found)
    slope = b.point("div", b.point("mul", grad, away), root)
    return b.point("where", b.point("lt", 0.0, root), slope, 0.0)


def _step_back(b: Builder, place: int, grad: int, add: object) -> None:
    """Adds to the gradients of a value's arguments."""
    assert callable(add)
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
