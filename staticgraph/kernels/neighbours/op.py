"""``neighbours`` as a torch operator: reference, registration, derivative."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
from staticgraph.kernels.neighbours.operations import POINTWISE
from staticgraph.kernels.neighbours.program import LEAST_VARIANCE, Program, known, program_of
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import common_dtype, wide_dtype
from staticgraph.kernels.table_sum.op import summed_by_entry
from staticgraph.text.how_many import how_many


def _values_of(
    program: Program,
    operands: Sequence[Tensor],
    codes: Sequence[Tensor],
    edges: Edges,
    needed: Iterable[int],
    own: bool,
) -> dict[int, Tensor]:
    """Values of a program for all edges, in eager torch: ``[E, *shape]`` each, one row for those
    without operands; or for all nodes' own terms, ``[N, *shape]``."""
    left = set(needed)
    for place in reversed(range(len(program.values))):
        if place in left:
            left.update(program.values[place].arguments)
    found: dict[int, Tensor] = {}
    for at in sorted(left - {-1}):
        operation, arguments, shape, options = program.values[at]
        given = [found[one] for one in arguments]
        if operation == "operand":
            rows = operands[options[0]]
            place, _, code = program.operands[options[0]]
            index = {"source": edges.src, "target": edges.dst}.get(place)
            index = codes[code] if place == "table" else index
            rows = rows if index is None or own else rows.index_select(0, index)
            value = rows.unsqueeze(0) if place == "all" else rows
        elif operation == "number":
            value = operands[0].new_full((1, *shape), options[0])
        elif operation == "share":
            count = edges.row_ptr.diff().clamp(min=1).to(operands[0].dtype)
            value = count.reciprocal().index_select(0, edges.dst)
        elif operation == "loop":
            value = edges.src == edges.dst
        elif operation == "view":
            value = given[0].reshape(-1, *shape)
        elif operation == "expand":
            value = _aligned(given[0], len(shape)).expand(-1, *shape)
        elif operation == "slice":
            dim, first, last = options
            value = given[0].narrow(dim + 1, first, last - first)
        elif operation == "cat":
            rows = next((len(one) for one in given if len(one) != 1), 1)
            whole = [one.expand(rows, *one.shape[1:]) for one in given]
            value = torch.cat(whole, options[0] + 1)
        elif operation == "permute":
            value = given[0].permute(0, *(dim + 1 for dim in options))
        elif operation == "total":
            value = given[0].sum([dim + 1 for dim in options])
        else:
            rank = len(shape)
            value = POINTWISE[operation].torch(*(_aligned(one, rank) for one in given))
        found[at] = value
    return found


def _aligned(rows: Tensor, rank: int) -> Tensor:
    """Rows with leading dimensions of size one, up to a rank."""
    return rows.reshape(len(rows), *(1,) * (rank + 1 - rows.dim()), *rows.shape[1:])


def neighbours_reference(
    program: Program, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Edges
) -> list[Tensor]:
    """Computes ``neighbours``; differentiable any number of times, on any device."""
    results = program.results
    each = [one for result in results for one in (result.value, result.weight)]
    more = [one for result in results for one in (result.start, result.start_weight)]
    values = _values_of(program, operands, codes, edges, each, own=False)
    own = _values_of(program, operands, codes, edges, more, own=True)
    nodes, count = edges.row_ptr.size(0) - 1, edges.src.size(0)
    found = []
    for result in results:
        rows, weight, start, start_weight = (
            None if at < 0 else one[at].expand(size, *one[at].shape[1:])
            for one, at, size in (
                (values, result.value, count),
                (values, result.weight, count),
                (own, result.start, nodes),
                (own, result.start_weight, nodes),
            )
        )
        assert rows is not None
        if result.reduction == "table_sum":
            table = operands[result.table]
            code = codes[program.operands[result.table].code]
            found.append(rows.new_zeros(len(table), *rows.shape[1:]).index_add(0, code, rows))
        elif result.reduction == "logsumexp":
            found.append(_logsumexp(rows, start, edges))
        elif result.reduction == "softmax":
            whole = _logsumexp(weight, start_weight, edges)
            share = (weight - whole.index_select(0, edges.dst)).exp()
            total = _reduced(_behind(share, rows) * rows, "sum", edges, nodes, count)
            if start is not None:
                total = total + _behind((start_weight - whole).exp(), start) * start
            found.append(total)
        else:
            parts = [_reduced(rows, how, edges, nodes, count) for how in result.reductions]
            total = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
            found.append(total if start is None else total + start)
    return found


def _behind(share: Any, rows: Any) -> Any:
    """Shares with dimensions of size one behind, as many as rows have."""
    return share.reshape(*share.shape, *(1,) * (rows.dim() - share.dim()))


def _logsumexp(weight: Any, own: Any, edges: Edges) -> Any:
    """The logarithm of the sum of exponentials over the edges of each node and its own."""
    nodes = edges.row_ptr.size(0) - 1
    index = edges.dst.view(-1, *(1,) * (weight.dim() - 1)).expand_as(weight)
    best = weight.new_full((nodes, *weight.shape[1:]), -torch.inf)
    best = best if own is None else own.detach()
    best = best.scatter_reduce(0, index, weight.detach(), "amax")
    empty = best == -torch.inf
    best = best.masked_fill(empty, 0)
    power = (weight - best.index_select(0, edges.dst)).exp()
    total = torch.zeros_like(best).index_add(0, edges.dst, power)
    total = total if own is None else total + (own - best).exp()
    return best + total.masked_fill(empty, 1).log()


def _reduced(rows: Tensor, reduction: str, edges: Edges, nodes: int, count: int) -> Tensor:
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
    root = variance.clamp(min=LEAST_VARIANCE).sqrt()
    return root.masked_fill(root <= math.sqrt(LEAST_VARIANCE), 0.0)


def empty_results(key: str, operands: Any, codes: Any, edges: Any) -> list[Tensor]:
    """Allocates the results of the program of a key, in the accumulation dtype."""
    program, dtype = program_of(key), wide_dtype(*operands)
    nodes = edges[2].size(0) - 1
    found: list[Tensor] = []
    for result, shape in zip(program.results, program.shapes, strict=True):
        rows = edges[0].size(0) if result.reduction == "rows" else nodes
        rows = operands[result.table].size(0) if result.table >= 0 else rows
        found.append(operands[0].new_empty(rows, *shape, dtype=dtype))
    return found


def _on_cpu(key: str, operands: Any, codes: Any, edges: Any) -> list[Tensor]:
    results, program = empty_results(key, operands, codes, edges), program_of(key)
    wide = in_loops(results[0].dtype)
    given = [
        one if one.dtype is wide and one.is_contiguous() else plain(one, wide) for one in operands
    ]
    lookups = [plain(one, torch.int64) for one in codes]
    arrays = [
        one if one.dtype is kind and one.is_contiguous() else plain(one, kind)
        for one, kind in zip(edges, _OF_EDGES, strict=True)
    ]
    if program.tables and all(one.table < 0 for one in program.results):  # else, forward did it
        for number, code in program.tables:
            _check(lookups[code], len(given[number]))
    cpu.run(program, given, lookups, arrays, results)
    return results


_OF_EDGES = (torch.int64, torch.int64, torch.int32, torch.int32, torch.int32)


def _check(code: Tensor, rows: int) -> None:
    if not len(code):
        return
    least, most = (int(one) for one in torch.aminmax(code))
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
    plain = all(type(one) in _PLAIN for one in operands) and operands[0].device.type == "cpu"
    if plain and not dispatch_modes() and not transforms_active():
        return _on_cpu(key, operands, codes, edges)
    return _neighbours(key, operands, codes, edges)


_PLAIN = {Tensor, torch.nn.Parameter}


class Neighbours(torch.autograd.Function):
    """Autograd function of ``neighbours``: its derivative is ``neighbours`` of another program."""

    @staticmethod
    def forward(
        ctx: Any, program: Program, codes: Any, edges: Edges, handed: Any, *operands: Tensor
    ) -> Any:
        """Returns the results, those that the derivative needs besides, and the operands that are
        handed on."""
        results = _computed(program.key, operands, codes, edges)
        kept, beside = _kept_and_beside(program)
        ctx.program, ctx.handed, ctx.codes = program, handed, len(codes)
        ctx.save_for_backward(*operands, *[results[at] for at in kept], *codes, *edges)
        if beside:
            ctx.mark_non_differentiable(*[results[at] for at in beside])
        ctx.set_materialize_grads(False)
        return *results, *[operands[at].view_as(operands[at]) for at in handed]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of the operands that need one."""
        program, saved = ctx.program, ctx.saved_tensors
        first, last = len(program.operands), len(saved) - 5 - ctx.codes
        operands, codes, edges = saved[:first], saved[last:-5], Edges(*saved[-5:])
        missing = [grad is None for grad in grads]
        key = ctx.handed, ctx.needs_input_grad, *missing, sums_tables(operands[0])
        plan = program.made.get(key)
        if plan is None:
            plan = program.made[key] = _planned(program, *key[:2], missing, key[-1])
        gradients: list[Tensor | None] = [None] * first
        for one, place in plan.into:
            gradients[one] = grads[place]
        if plan.slope is not None:
            given = [*operands, *[saved[place] for place in plan.saved]]
            given += [grads[place].contiguous() for place in plan.given]
            slope = plan.slope.program
            outs = _applied(slope, given, codes, edges, ()) if slope.results else ()
            for operand, place in plan.slope.places:
                rows = outs[place] if place >= 0 else given[-1 - place]
                gradients[operand] = _collected(program, operand, rows, operands[operand], codes)
        return None, None, None, None, *gradients


class _Plan(NamedTuple):
    """What a backward does, by which gradients there are and which are asked for.

    Attributes:
        slope: the derivative; None if there is none.
        saved: places of the results that it reads among what was saved.
        given: places of the gradients that it reads.
        into: operands that were handed on, and the places of their gradients.
    """

    slope: Derivative | None
    saved: list[int]
    given: list[int]
    into: list[tuple[int, int]]


def _planned(program: Program, handed: Any, needs: Any, missing: list[bool], on_cpu: bool) -> _Plan:
    count = len(program.results)
    graded = tuple(place for place in range(count) if not missing[place])
    asked = tuple(place for place, need in enumerate(needs[4:]) if need)
    into = [(one, count + at) for at, one in enumerate(handed) if not missing[count + at]]
    if not graded or not asked:
        return _Plan(None, [], [], into)
    slope = derivative(program, graded, asked, tuple(one for one, _ in into), on_cpu)
    kept, _ = _kept_and_beside(program)
    saved = [len(program.operands) + kept.index(place) for place in slope.results]
    given = [*graded, *(place for _, place in into)]
    return _Plan(slope if slope.places else None, saved, given, into)


def _kept_and_beside(program: Program) -> tuple[list[int], list[int]]:
    """The numbers of results that a derivative may read, and of those that have no derivative."""
    found = program.made.get("kept")
    if found is None:
        each = [{*one.reductions} for one in program.results]
        kept = [at for at, names in enumerate(each) if KEPT & names]
        beside = [at for at, names in enumerate(each) if {"min_ties", "max_ties"} & names]
        found = program.made["kept"] = kept, beside
    return found


def sums_tables(like: Tensor) -> bool:
    """Whether a program sums the gradient of a table itself, as the loops of a CPU can."""
    return like.device.type == "cpu"


def _collected(
    program: Program, operand: int, rows: Tensor, like: Tensor, codes: Sequence[Tensor]
) -> Tensor:
    """The gradient of an operand, from the result for it."""
    place, _, code = program.operands[operand]
    if place == "all":
        rows = rows.sum(0)
        rows = rows if rows.shape == like.shape else rows.view(like.shape)
    elif place == "table" and not sums_tables(like):
        rows = summed_by_entry(rows.flatten(1), codes[code], len(like)).view(like.shape)
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
        promoted dtype of the operands; zero for nodes without edges. Differentiable any number of
        times. Bitwise deterministic, on any number of threads.

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
    operands = [one.contiguous() for one in operands]
    if not torch.is_grad_enabled() or not any(one.requires_grad for one in operands):
        outs = _computed(known(program), operands, codes, edges)
        return *outs, *[operands[at] for at in handed]
    whole = program.made.get("accompanied")
    if whole is None:
        whole = program.made["accompanied"] = accompanied(program)
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
    return *[cast(one, dtype) for one in outs[:count]], *outs[count:]
