"""``neighbours`` as a torch operator: registration, shapes, derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.internals.dispatch import OpOverload, dispatch_modes, transforms_active
from staticgraph.kernels.cpu_loop import cast, in_loops, plain
from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours import cpu
from staticgraph.kernels.neighbours.derivative import (
    KEPT,
    Derivative,
    accompanied,
    derivative,
)
from staticgraph.kernels.neighbours.program import Program, known, program_of
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import common_dtype, wide_dtype
from staticgraph.text.how_many import how_many


def empty_results(key: str, operands: Any, codes: Any, edges: Any) -> list[Tensor]:
    """Allocates the results of the program of a key, in the accumulation dtype."""
    program, dtype = program_of(key), wide_dtype(*operands)
    targets, sources = (pointers.size(0) - 1 for pointers in edges[2:4])
    counts = {"rows": edges[0].size(0), "source_sum": sources}
    results: list[Tensor] = []
    for result, shape in zip(program.results, program.shapes, strict=True):
        rows = counts.get(result.reduction, targets)
        rows = operands[result.table].size(0) if result.table >= 0 else rows
        results.append(operands[0].new_empty(rows, *shape, dtype=dtype))
    return results


def _on_cpu(key: str, operands: Any, codes: Any, edges: Any) -> list[Tensor]:
    results, program = empty_results(key, operands, codes, edges), program_of(key)
    wide = in_loops(results[0].dtype)
    tensors = [
        operand if operand.dtype is wide and operand.is_contiguous() else plain(operand, wide)
        for operand in operands
    ]
    lookups = [plain(lookup, torch.int64) for lookup in codes]
    arrays = [
        array if array.dtype is kind and array.is_contiguous() else plain(array, kind)
        for array, kind in zip(edges, _OF_EDGES, strict=False)
    ]
    if program.tables and all(
        result.table < 0 for result in program.results
    ):  # else, forward did it
        for number, code in program.tables:
            _check(lookups[code], len(tensors[number]))
    cpu.run(program, tensors, lookups, arrays, results)
    return results


_OF_EDGES = (torch.int64, torch.int64, *[torch.int32] * 4)


def _check(code: Tensor, rows: int) -> None:
    if not len(code):
        return
    least, most = (int(bound) for bound in torch.aminmax(code))
    if least < 0 or most >= rows:
        index = least if least < 0 else most
        raise IndexError(f"index {index} is outside of a table of {how_many(rows, 'row')}")


_neighbours: OpOverload[..., Any] = operator(
    "neighbours(str program, Tensor[] operands, Tensor[] codes, Tensor[] edges) -> Tensor[]",
    cpu=_on_cpu,
    cuda="neighbours.gpu:forward",
    fake=empty_results,
).overload


def _computed(
    key: str, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Edges
) -> Sequence[Tensor]:
    """Calls the operator: on a CPU directly where nothing watches, since torch's dispatcher takes
    as long for so many tensors as the rest of the call."""
    on_cpu = (
        all(type(operand) in _PLAIN for operand in operands) and operands[0].device.type == "cpu"
    )
    if on_cpu and not dispatch_modes() and not transforms_active():
        return _on_cpu(key, operands, codes, edges.arrays)
    return _neighbours(key, operands, codes, edges.arrays)


_PLAIN = {Tensor, torch.nn.Parameter}


class Neighbours(torch.autograd.Function):
    """Autograd function of ``neighbours``: its derivative is ``neighbours`` of another program."""

    @staticmethod
    def forward(
        ctx: Any, program: Program, codes: Any, edges: Edges, handed: Any, *operands: Tensor
    ) -> Any:
        """Returns the results, those that the derivative needs besides, and the operands that are
        handed on, to the derivative, too."""
        results = _computed(program.key, operands, codes, edges)
        same = [operands[number].view_as(operands[number]) for number in handed]
        read = list(operands)
        for number, operand in zip(handed, same, strict=True):
            read[number] = operand
        kept_numbers, beside = _kept_and_beside(program)
        ctx.program, ctx.handed, ctx.codes = program, handed, len(codes)
        ctx.save_for_backward(*read, *[results[number] for number in kept_numbers], *codes, *edges)
        if beside:
            ctx.mark_non_differentiable(*[results[number] for number in beside])
        ctx.set_materialize_grads(False)
        return *results, *same

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of the operands that need one."""
        program, saved = ctx.program, ctx.saved_tensors
        first, arrays = len(program.operands), len(Edges._fields)
        operands, edges = saved[:first], Edges(*saved[-arrays:])
        codes = saved[len(saved) - arrays - ctx.codes : -arrays]
        missing = [grad is None for grad in grads]
        key = ctx.handed, ctx.needs_input_grad, *missing
        plan = program.cache.get(key)
        if plan is None:
            plan = program.cache[key] = _planned(program, *key[:2], missing)
        gradients: list[Tensor | None] = [None] * first
        for number, place in plan.into:
            gradients[number] = grads[place]
        if plan.slope is not None:
            arguments = [*operands, *[saved[place] for place in plan.saved]]
            arguments += [grads[place].contiguous() for place in plan.gradients]
            slope = plan.slope.program
            outs = _applied(slope, arguments, codes, edges, ()) if slope.results else ()
            for operand, place in plan.slope.places:
                rows = outs[place] if place >= 0 else arguments[-1 - place]
                gradients[operand] = _collected(program, operand, rows, operands[operand])
        return None, None, None, None, *gradients


class _Plan(NamedTuple):
    """What a backward does, by which gradients there are and which are asked for.

    Attributes:
        slope: the derivative; None if there is none.
        saved: places of the results that it reads among what was saved.
        gradients: places of the gradients that it reads.
        into: operands that were handed on, and the places of their gradients.
    """

    slope: Derivative | None
    saved: list[int]
    gradients: list[int]
    into: list[tuple[int, int]]


def _planned(program: Program, handed: Any, needs: Any, missing: list[bool]) -> _Plan:
    count = len(program.results)
    graded = tuple(place for place in range(count) if not missing[place])
    inputs = tuple(place for place, need in enumerate(needs[4:]) if need)
    into = [
        (operand, count + place)
        for place, operand in enumerate(handed)
        if not missing[count + place]
    ]
    if not graded or not inputs:
        return _Plan(None, [], [], into)
    slope = derivative(program, graded, inputs, tuple(operand for operand, _ in into))
    kept_numbers, _ = _kept_and_beside(program)
    saved = [len(program.operands) + kept_numbers.index(place) for place in slope.results]
    gradients = [*graded, *(place for _, place in into)]
    return _Plan(slope if slope.places else None, saved, gradients, into)


def _kept_and_beside(program: Program) -> tuple[list[int], list[int]]:
    """The numbers of results that a derivative may read, and of those that have no derivative."""
    numbers = program.cache.get("kept")
    if numbers is None:
        reductions = [{*result.reductions} for result in program.results]
        kept_numbers = [number for number, names in enumerate(reductions) if KEPT & names]
        beside = [
            number for number, names in enumerate(reductions) if {"min_ties", "max_ties"} & names
        ]
        numbers = program.cache["kept"] = kept_numbers, beside
    return numbers


def _collected(program: Program, operand: int, rows: Tensor, like: Tensor) -> Tensor:
    """The gradient of an operand, from the result for it."""
    if program.operands[operand].place == "all":
        rows = rows.sum(0)
        rows = rows if rows.shape == like.shape else rows.view(like.shape)
    return cast(rows, like.dtype)


def neighbours(
    program: Program, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Edges
) -> tuple[Tensor, ...]:
    """Computes a program over the edges of a batch.

    Args:
        program: what is computed.
        operands: one tensor per operand of the program, ``[S, *shape]`` of sources, ``[N, *shape]``
            of targets, ``[E, *shape]`` of edges, ``[V, *shape]`` of a table, ``shape`` of one row
            for all; float32, float64, bfloat16 or float16, the last two are computed in float32.
        codes: ``[E]`` int64, the rows of tables that edges read; on a CPU alone.
        edges: their ends and pointers.

    Returns:
        One tensor per result: ``[E, *shape]`` of ``rows``, ``[S, *shape]`` of ``source_sum``,
        ``[N, *shape]`` of the others, in the promoted dtype of the operands; zero for nodes without
        edges. Differentiable any number of times. Bitwise deterministic, on any number of threads.

    Raises:
        IndexError: on a CPU, a code is outside of its table.
    """
    return neighbours_of(known(program), operands, codes, edges)


def _applied(
    program: Program,
    operands: Sequence[Tensor],
    codes: Sequence[Tensor],
    edges: Edges,
    handed: Sequence[int],
) -> tuple[Tensor, ...]:
    operands = [operand.contiguous() for operand in operands]
    if not torch.is_grad_enabled() or not any(operand.requires_grad for operand in operands):
        outs = _computed(known(program), operands, codes, edges)
        return *outs, *[operands[number] for number in handed]
    whole = program.cache.get("accompanied")
    if whole is None:
        whole = program.cache["accompanied"] = accompanied(program)
        known(whole)
    outs = Neighbours.apply(whole, tuple(codes), edges, tuple(handed), *operands)
    if len(whole.results) == len(program.results):
        return outs
    return *outs[: len(program.results)], *outs[len(whole.results) :]


def neighbours_of(
    key: str,
    operands: Sequence[Tensor],
    codes: Sequence[Tensor],
    edges: Edges,
    handed: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """:func:`neighbours` of the program of this key, which graphs can hold.

    Returns:
        The results, then the operands of the numbers ``handed``, which have rows of nodes or of
        edges, for their next reader: later code should read these, and their gradients are added
        in the same pass.
    """
    program, dtype = program_of(key), common_dtype(*operands)
    outs = _applied(program, operands, codes, Edges(*edges), handed)
    count = len(program.results)
    return *[cast(out, dtype) for out in outs[:count]], *outs[count:]
