"""``neighbours`` as a torch operator: reference, registration, derivative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from staticgraph.internals.dispatch import OpOverload
from staticgraph.kernels.cpu_loop import cast, in_loops
from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours import cpu
from staticgraph.kernels.neighbours.derivative import KEPT, accompanied, derivative
from staticgraph.kernels.neighbours.operations import POINTWISE
from staticgraph.kernels.neighbours.program import Program, Result, known, program_of
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import wide_dtype


def values_of(
    program: Program, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Edges
) -> list[Tensor]:
    """The values of a program for all edges, in eager torch: ``[E, *shape]`` each, one row for
    values without operands."""
    found: list[Tensor] = []
    for operation, arguments, shape, options in program.values:
        given = [found[one] for one in arguments]
        if operation == "operand":
            rows = operands[options[0]]
            place, _, code = program.operands[options[0]]
            index = {"source": edges.src, "target": edges.dst}.get(place)
            index = codes[code] if place == "table" else index
            rows = rows if index is None else rows.index_select(0, index)
            found.append(rows.unsqueeze(0) if place == "all" else rows)
        elif operation == "number":
            found.append(operands[0].new_full((1, *shape), options[0]))
        elif operation == "share":
            count = edges.row_ptr.diff().clamp(min=1).to(operands[0].dtype)
            found.append(count.reciprocal().index_select(0, edges.dst))
        elif operation == "view":
            found.append(given[0].reshape(-1, *shape))
        elif operation == "expand":
            found.append(_aligned(given[0], len(shape)).expand(-1, *shape))
        elif operation == "slice":
            dim, first, last = options
            found.append(given[0].narrow(dim + 1, first, last - first))
        elif operation == "cat":
            rows = max(len(one) for one in given)
            whole = [one.expand(rows, *one.shape[1:]) for one in given]
            found.append(torch.cat(whole, options[0] + 1))
        elif operation == "permute":
            found.append(given[0].permute(0, *(dim + 1 for dim in options)))
        elif operation == "total":
            found.append(given[0].sum([dim + 1 for dim in options]))
        else:
            rank = len(shape)
            found.append(POINTWISE[operation].torch(*(_aligned(one, rank) for one in given)))
    return found


def _aligned(rows: Tensor, rank: int) -> Tensor:
    """Rows with leading dimensions of size one, up to a rank."""
    return rows.reshape(len(rows), *(1,) * (rank + 1 - rows.dim()), *rows.shape[1:])


def neighbours_reference(
    program: Program, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Edges
) -> list[Tensor]:
    """Computes ``neighbours``; differentiable any number of times, on any device."""
    values = values_of(program, operands, codes, edges)
    nodes, count = edges.row_ptr.size(0) - 1, edges.src.size(0)
    return [_reduced(program, result, values, edges, nodes, count) for result in program.results]


def _reduced(
    program: Program, result: Result, values: list[Tensor], edges: Edges, nodes: int, count: int
) -> Tensor:
    rows, reduction = values[result.value], result.reduction
    rows = rows.expand(count, *rows.shape[1:])
    zeros = rows.new_zeros(nodes, *rows.shape[1:])
    if reduction == "rows":
        return rows
    if reduction == "source_sum":
        return zeros.index_add(0, edges.src, rows)
    index = edges.dst.view(-1, *(1,) * (rows.dim() - 1)).expand_as(rows)
    if reduction[:3] in ("min", "max"):
        way = f"a{reduction[:3]}"
        best = zeros.scatter_reduce(0, index, rows, way, include_self=False)
        if reduction in ("min", "max"):
            return best
        equal = (rows == best.index_select(0, edges.dst)).to(rows.dtype)
        return (best == 0).to(rows.dtype).index_add(0, edges.dst, equal)
    degree = edges.row_ptr.diff().clamp(min=1).to(rows.dtype).view(-1, *(1,) * (rows.dim() - 1))
    total = zeros.index_add(0, edges.dst, rows)
    if reduction == "sum":
        return total
    mean = total / degree
    if reduction == "mean":
        return mean
    away = (rows - mean.index_select(0, edges.dst)).square()
    variance = zeros.index_add(0, edges.dst, away) / degree
    if reduction == "var":
        return variance
    root = variance.clamp(min=cpu.LEAST_VARIANCE).sqrt()
    return root.masked_fill(root <= math.sqrt(cpu.LEAST_VARIANCE), 0.0)


def empty_results(key: str, operands: Any, codes: Any, edges: Any) -> list[Tensor]:
    """Allocates the results of the program of a key, in the accumulation dtype."""
    program = program_of(key)
    dtype, nodes, count = wide_dtype(*operands), edges[2].size(0) - 1, edges[0].size(0)
    return [
        operands[0].new_empty(
            count if result.reduction == "rows" else nodes, *program.shape(result), dtype=dtype
        )
        for result in program.results
    ]


def _on_cpu(key: str, operands: Any, codes: Any, edges: Any) -> list[Tensor]:
    results = empty_results(key, operands, codes, edges)
    wide = in_loops(wide_dtype(*operands))
    given = [cast(one, wide).contiguous() for one in operands]
    plain = [one.contiguous() for one in edges]
    cpu.run(program_of(key), given, [one.contiguous() for one in codes], plain, results)
    return results


_neighbours: OpOverload[..., Any] = operator(
    "neighbours(str program, Tensor[] operands, Tensor[] codes, Tensor[] edges) -> Tensor[]",
    cpu=_on_cpu,
    cuda="neighbours.gpu:forward",
    fake=empty_results,
).overload


class Neighbours(torch.autograd.Function):
    """Autograd function of ``neighbours``: its derivative is ``neighbours`` of another program."""

    @staticmethod
    def forward(ctx: Any, program: Program, codes: Any, edges: Edges, *operands: Tensor) -> Any:
        """Returns the results, and those that the derivative needs besides."""
        ctx.program = program
        results = _neighbours(known(program), operands, codes, edges)
        ctx.kept = [at for at, one in enumerate(program.results) if one.reduction in KEPT]
        ctx.counts = len(operands), len(ctx.kept), len(codes)
        ctx.save_for_backward(*operands, *(results[at] for at in ctx.kept), *codes, *edges)
        beside = [
            one
            for one, (_, reduction) in zip(results, program.results, strict=True)
            if reduction.endswith("_ties")
        ]
        ctx.mark_non_differentiable(*beside)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of the operands that need one."""
        saved, (first, second, third) = ctx.saved_tensors, ctx.counts
        operands, kept = saved[:first], saved[first : first + second]
        results = dict(zip(ctx.kept, kept, strict=True))
        codes = saved[first + second : first + second + third]
        edges = Edges(*saved[first + second + third :])
        graded = tuple(place for place, grad in enumerate(grads) if grad is not None)
        needs = ctx.needs_input_grad[3:]
        asked = tuple(place for place, need in enumerate(needs) if need)
        found: list[Tensor | None] = [None] * first
        if graded and asked:
            slope = derivative(ctx.program, graded, asked)
            given = [
                *operands,
                *(results[place] for place in slope.results),
                *(grads[place].contiguous() for place in graded),
            ]
            if slope.places:
                outs = neighbours(slope.program, given, codes, edges)
                for operand, place in slope.places:
                    found[operand] = _collected(
                        outs[place], ctx.program.operands[operand], operands[operand], codes
                    )
        return None, None, None, *found


def _collected(rows: Tensor, operand: Any, like: Tensor, codes: Sequence[Tensor]) -> Tensor:
    """The gradient of an operand, from the result for it."""
    if operand.place == "all":
        rows = rows.sum(0).view(like.shape)
    elif operand.place == "table":
        rows = rows.new_zeros(like.shape).index_add(0, codes[operand.code], rows)
    return cast(rows, like.dtype)


def neighbours(
    program: Program, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Edges
) -> tuple[Tensor, ...]:
    """Computes a program over the edges of a batch.

    Args:
        program: what is computed.
        operands: one tensor per operand of the program, ``[N, *shape]`` of nodes, ``[E, *shape]``
            of edges, ``[V, *shape]`` of a table, ``shape`` of one row for all; float32, float64,
            bfloat16 or float16, the last two are computed in float32.
        codes: ``[E]`` int64, the rows of tables that edges read.
        edges: their ends and pointers.

    Returns:
        One tensor per result: ``[E, *shape]`` of ``rows``, ``[N, *shape]`` of the others, in the
        dtype of the operands; zero for nodes without edges. Differentiable any number of times.
        Bitwise deterministic, on any number of threads.
    """
    operands = [one.contiguous() for one in operands]
    trains = torch.is_grad_enabled() and any(one.requires_grad for one in operands)
    whole = accompanied(program) if trains else program
    found = Neighbours.apply(whole, tuple(codes), edges, *operands)
    dtype = operands[0].dtype
    return tuple(cast(one, dtype) for one in found[: len(program.results)])


def neighbours_of(
    key: str, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Edges
) -> tuple[Tensor, ...]:
    """:func:`neighbours` of the program of this key, which graphs can hold."""
    return neighbours(program_of(key), operands, codes, Edges(*edges))
