"""What a program computes, in eager torch: the definition that generated code is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours.operations import POINTWISE
from staticgraph.kernels.neighbours.program import LEAST_VARIANCE, Program


def _values_of(
    program: Program,
    operands: Sequence[Tensor],
    codes: Sequence[Tensor],
    edges: Edges,
    needed: Iterable[int],
    own_term: bool,
) -> dict[int, Tensor]:
    """Values of a program for all edges, in eager torch: ``[E, *shape]`` each, one row for those
    without operands; or for all nodes' own terms, ``[N, *shape]``."""
    left = set(needed)
    for place in reversed(range(len(program.values))):
        if place in left:
            left.update(program.values[place].arguments)
    values: dict[int, Tensor] = {}
    for number in sorted(left - {-1}):
        operation, arguments, shape, options = program.values[number]
        inputs = [values[argument] for argument in arguments]
        if operation == "operand":
            rows = operands[options[0]]
            place, _, code = program.operands[options[0]]
            index = {"source": edges.src, "target": edges.dst}.get(place)
            index = codes[code] if place == "table" else index
            rows = rows if index is None or own_term else rows.index_select(0, index)
            value = rows.unsqueeze(0) if place == "all" else rows
        elif operation == "number":
            value = operands[0].new_full((1, *shape), options[0])
        elif operation == "share":
            count = edges.row_ptr.diff().clamp(min=1).to(operands[0].dtype)
            value = count.reciprocal().index_select(0, edges.dst)
        elif operation == "loop":
            value = edges.src == edges.dst
        elif operation == "view":
            value = inputs[0].reshape(-1, *shape)
        elif operation == "expand":
            value = _aligned(inputs[0], len(shape)).expand(-1, *shape)
        elif operation == "slice":
            dim, first, last = options
            value = inputs[0].narrow(dim + 1, first, last - first)
        elif operation == "cat":
            rows = next((len(tensor) for tensor in inputs if len(tensor) != 1), 1)
            whole = [tensor.expand(rows, *tensor.shape[1:]) for tensor in inputs]
            value = torch.cat(whole, options[0] + 1)
        elif operation == "permute":
            value = inputs[0].permute(0, *(dim + 1 for dim in options))
        elif operation == "total":
            value = inputs[0].sum([dim + 1 for dim in options])
        else:
            rank = len(shape)
            value = POINTWISE[operation].torch(*(_aligned(tensor, rank) for tensor in inputs))
        values[number] = value
    return values


def _aligned(rows: Tensor, rank: int) -> Tensor:
    """Rows with leading dimensions of size one, up to a rank."""
    return rows.reshape(len(rows), *(1,) * (rank + 1 - rows.dim()), *rows.shape[1:])


def neighbours_reference(
    program: Program, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Edges
) -> list[Tensor]:
    """Computes ``neighbours``; differentiable any number of times, on any device."""
    results = program.results
    needed = [place for result in results for place in (result.value, result.weight)]
    more = [place for result in results for place in (result.start, result.start_weight)]
    values = _values_of(program, operands, codes, edges, needed, own_term=False)
    own_values = _values_of(program, operands, codes, edges, more, own_term=True)
    nodes, count = edges.row_ptr.size(0) - 1, edges.src.size(0)
    outs = []
    for result in results:
        rows, weight, start, start_weight = (
            None if place < 0 else tensors[place].expand(size, *tensors[place].shape[1:])
            for tensors, place, size in (
                (values, result.value, count),
                (values, result.weight, count),
                (own_values, result.start, nodes),
                (own_values, result.start_weight, nodes),
            )
        )
        assert rows is not None
        if result.reduction == "table_sum":
            table = operands[result.table]
            code = codes[program.operands[result.table].code]
            outs.append(rows.new_zeros(len(table), *rows.shape[1:]).index_add(0, code, rows))
        elif result.reduction == "logsumexp":
            outs.append(_logsumexp(rows, start, edges))
        elif result.reduction == "softmax":
            whole = _logsumexp(weight, start_weight, edges)
            share = (weight - whole.index_select(0, edges.dst)).exp()
            total = _reduced(_behind(share, rows) * rows, "sum", edges, nodes, count)
            if start is not None:
                total = total + _behind((start_weight - whole).exp(), start) * start
            outs.append(total)
        else:
            parts = [_reduced(rows, how, edges, nodes, count) for how in result.reductions]
            total = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
            outs.append(total if start is None else total + start)
    return outs


def _behind(share: Any, rows: Any) -> Any:
    """Shares with dimensions of size one behind, as many as rows have."""
    return share.reshape(*share.shape, *(1,) * (rows.dim() - share.dim()))


def _logsumexp(weight: Any, start: Any, edges: Edges) -> Any:
    """The logarithm of the sum of exponentials over the edges of each node and its own."""
    nodes = edges.row_ptr.size(0) - 1
    index = edges.dst.view(-1, *(1,) * (weight.dim() - 1)).expand_as(weight)
    best = weight.new_full((nodes, *weight.shape[1:]), -torch.inf)
    best = best if start is None else start.detach()
    best = best.scatter_reduce(0, index, weight.detach(), "amax")
    empty = best == -torch.inf
    best = best.masked_fill(empty, 0)
    power = (weight - best.index_select(0, edges.dst)).exp()
    total = torch.zeros_like(best).index_add(0, edges.dst, power)
    total = total if start is None else total + (start - best).exp()
    return best + total.masked_fill(empty, 1).log()


def _reduced(rows: Tensor, reduction: str, edges: Edges, nodes: int, count: int) -> Tensor:
    if reduction == "rows":
        return rows
    if reduction == "source_sum":
        sources = edges.col_ptr.size(0) - 1
        return rows.new_zeros(sources, *rows.shape[1:]).index_add(0, edges.src, rows)
    zeros = rows.new_zeros(nodes, *rows.shape[1:])
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
