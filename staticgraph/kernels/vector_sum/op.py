"""``vector_sum`` as a torch operator: CPU kernel, shapes, derivative.

An equivariant layer sends vectors along edges: each neighbour's vectors, gated column by column,
and the edge's own direction, scaled per column, next to a scalar message. All factors come from one
product of a node's row with the edge's filter. In stock operations each of these is a tensor of all
edges, three times as wide for a vector, and again in backward. There is no CUDA kernel.

Source: Schuett, Unke and Gastegger 2021, arXiv 2102.03150, equations 7 and 8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.kernels.addresses import LIKE, addresses, cast, in_kernels, plain
from staticgraph.kernels.register import asked_of, differentiable_once, operator
from staticgraph.kernels.threads import threads_for
from staticgraph.kernels.vector_sum import cpu
from staticgraph.text.how_many import how_many


def vector_sum_reference(
    vectors: Tensor,
    edge: Tensor,
    unit: Tensor | None,
    x: Tensor | None,
    src: Tensor,
    dst: Tensor,
    places: tuple[int, int, int],
) -> tuple[Tensor, Tensor | None]:
    """Computes ``vector_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.vector_sum`;
    ``places`` are the offsets of gate, along and scalar, -1 for none; edges in any order.
    """
    wide, width = torch.promote_types(vectors.dtype, torch.float32), vectors.size(2)
    rows = edge.to(wide) if x is None else edge.to(wide) * x.to(wide).index_select(0, src)
    gate, along, scalar = (rows[:, at : at + width] if at >= 0 else None for at in places)
    assert gate is not None
    message = vectors.to(wide).index_select(0, src) * gate[:, None]
    if along is not None and unit is not None:
        message = message + along[:, None] * unit.to(wide)[:, :, None]
    out = torch.zeros_like(vectors, dtype=wide).index_add(0, dst, message).to(vectors.dtype)
    if scalar is None:
        return out, None
    zero = out.new_zeros(len(vectors), width, dtype=wide)
    return out, zero.index_add(0, dst, scalar).to(vectors.dtype)


class VectorSums(NamedTuple):
    """The sums for each node.

    Attributes:
        vectors: ``[N, D, F]``.
        scalars: ``[N, F]``, or None without a scalar part.
    """

    vectors: Tensor
    scalars: Tensor | None


def _on_cpu(
    vectors: Tensor,
    edge: Tensor,
    unit: Tensor | None,
    x: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    places: list[int],
) -> tuple[Tensor, Tensor]:
    wide = in_kernels(vectors.dtype)
    read = [plain(value, wide) for value in (x, edge, vectors, unit)]
    src, row_ptr = plain(src, torch.int64), plain(row_ptr, torch.int32)
    out = torch.empty(vectors.shape, dtype=wide)
    total = torch.empty(len(vectors) if places[2] >= 0 else 0, vectors.size(2), dtype=wide)
    cpu.forward(
        LIKE[wide],
        addresses(*read, src, row_ptr, out, total),
        _sizes(vectors, edge, x),
        tuple(places),
        _threads(vectors, edge),
    )
    return cast(out, vectors.dtype), cast(total, vectors.dtype)


def _backward_on_cpu(
    grad: Tensor,
    on_total: Tensor,
    vectors: Tensor,
    edge: Tensor,
    unit: Tensor | None,
    x: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    places: list[int],
    moved: bool,
    turned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype, wide = vectors.dtype, in_kernels(vectors.dtype)
    read = [plain(value, wide) for value in (grad, on_total, x, edge, vectors, unit)]
    dst, col_ptr = plain(dst, torch.int64), plain(col_ptr, torch.int32)
    transpose = plain(transpose, torch.int32)
    parts = sum(place >= 0 for place in places)
    whole = parts * vectors.size(2) == edge.size(1)  # a column that no part reads gets zero
    dvectors = torch.empty(vectors.shape if moved else (0,), dtype=wide)
    dedge = (torch.empty if whole else torch.zeros)(edge.shape, dtype=wide)
    dunit = torch.empty((len(edge), vectors.size(1)) if turned else (0,), dtype=wide)
    dx = torch.empty((0,) if x is None else x.shape, dtype=wide)
    cpu.backward(
        LIKE[wide],
        addresses(*read, dst, col_ptr, transpose, dvectors, dedge, dunit, dx),
        _sizes(vectors, edge, x),
        tuple(places),
        moved,
        turned,
        _threads(vectors, edge),
    )
    return cast(dvectors, dtype), cast(dedge, dtype), cast(dunit, dtype), cast(dx, dtype)


def _sizes(vectors: Tensor, edge: Tensor, x: Tensor | None) -> tuple[int, ...]:
    return len(vectors), len(edge), *vectors.shape[1:], edge.size(1), 0 if x is None else x.size(1)


def _threads(vectors: Tensor, edge: Tensor) -> int:
    return threads_for((len(vectors) + len(edge)) * vectors.size(1) * vectors.size(2))


def _fake(vectors, edge, unit, x, src, dst, row_ptr, col_ptr, transpose, places):
    scalars = vectors.size(0) if places[2] >= 0 else 0
    return torch.empty_like(vectors), vectors.new_empty(scalars, vectors.size(2))


def _fake_backward(grad, on_total, vectors, edge, unit, x, *rest):
    moved, turned = rest[-2:]
    nothing = vectors.new_empty(0)
    return (
        torch.empty_like(vectors) if moved else nothing,
        torch.empty_like(edge),
        vectors.new_empty(edge.size(0), vectors.size(1)) if turned else torch.empty_like(nothing),
        torch.empty_like(nothing) if x is None else torch.empty_like(x),
    )


_OPERANDS = (
    "Tensor vectors, Tensor edge, Tensor? unit, Tensor? x, Tensor src, Tensor dst, "
    "Tensor row_ptr, Tensor col_ptr, Tensor transpose, int[] places"
)
_forward = operator(
    f"vector_sum({_OPERANDS}) -> (Tensor, Tensor)", cpu=_on_cpu, cuda=None, fake=_fake
)
_backward = operator(
    f"vector_sum_backward(Tensor grad, Tensor on_total, {_OPERANDS}, bool moved, bool turned) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=None,
    fake=_fake_backward,
)


class VectorSum(torch.autograd.Function):
    """Autograd function of ``vector_sum``; backward goes source by source."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Returns the operator's ``[N, D, F]`` and ``[N, F]``."""
        *tensors, places = inputs
        ctx.save_for_backward(*tensors)
        ctx.places = places
        return _forward(*tensors, places)

    @staticmethod
    @differentiable_once("vector_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of vectors, edges, directions and node rows."""
        moved, turned = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        found = _backward(*grads, *ctx.saved_tensors, ctx.places, moved, turned)
        return *asked_of(ctx, found), *(None,) * 6


def vector_sum(
    vectors: Tensor,
    edge: Tensor,
    unit: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    *,
    x: Tensor | None = None,
    gate: int = 0,
    along: int | None = None,
    scalar: int | None = None,
) -> VectorSums:
    """Sums vector messages, and optionally scalar messages, over the edges into each node; CPU
    only.

    Computes ``out[i, d] = sum over edges e into i of vectors[src[e], d] * gate[e] + unit[e, d] *
    along[e]``, and the sum of ``scalar[e]``, where gate, along and scalar are three parts of
    ``edge[e] * x[src[e]]``.

    Args:
        vectors: ``[N, D, F]``, such as three spatial dimensions by ``F`` features.
        edge: ``[E, K]``, of which parts of ``F`` columns are read.
        unit: ``[E, D]``, the directions of edges; None without ``along``.
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.
        x: ``[N, K]``, rows of the sources, multiplied with those of the edges; None for nothing.
        gate, along, scalar: the column of ``edge`` at which each part begins; None for no part
            along, or no scalar part. Parts must not overlap.

    Returns:
        Sums in the dtype of ``vectors``; half precisions are accumulated in float32. Differentiable
        once in ``vectors``, ``edge``, ``unit`` and ``x``. Bitwise deterministic.

    Raises:
        ValueError: parts that overlap or exceed the columns, or only one of ``along`` and ``unit``.
    """
    width = vectors.size(2)
    places = [-1 if place is None else place for place in (gate, along, scalar)]
    first = sorted(place for place in places if place >= 0)
    ends = [*first[1:], edge.size(1)]
    if gate < 0 or any(end - at < width for at, end in zip(first, ends, strict=True)):
        raise ValueError(
            f"gate={gate}, along={along}, scalar={scalar}: each begins "
            f"{how_many(width, 'column')} of its own, of the {edge.size(1)} of edge"
        )
    if (along is None) != (unit is None):
        raise ValueError("along and unit: give both, or neither where edges have no direction")
    given = (None if one is None else one.contiguous() for one in (vectors, edge, unit, x))
    out, total = VectorSum.apply(*given, src, dst, row_ptr, col_ptr, transpose, places)
    return VectorSums(out, None if scalar is None else total)
