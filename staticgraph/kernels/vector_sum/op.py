"""``vector_sum`` as a torch operator: reference, registration, shapes.

An equivariant layer sends vectors along edges: each neighbour's vectors, gated column by column,
and the edge's own direction, scaled per column, next to a scalar message. All factors come from one
product of a node's row with the edge's filter. In stock operations each of these is a tensor of all
edges, three times as wide for a vector, and again in backward. There is no CUDA kernel.

Source: Schuett, Unke and Gastegger 2021, arXiv 2102.03150, equations 7 and 8.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import contiguous, empty_like
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


def _fake_backward(grad, grad_total, vectors, edge, unit, x, *rest):
    moved, turned = rest[-2:]
    nothing = vectors.new_empty(0)
    return (
        torch.empty_like(vectors if moved else nothing),
        torch.empty_like(edge),
        vectors.new_empty(edge.size(0), vectors.size(1)) if turned else torch.empty_like(nothing),
        empty_like(x, vectors),
    )


_OPERANDS = (
    "Tensor vectors, Tensor edge, Tensor? unit, Tensor? x, Tensor[] edges, int gate, int along, "
    "int scalar"
)
_vector_sum = operator(
    f"vector_sum({_OPERANDS}) -> (Tensor out, Tensor total)",
    cpu=cpu.forward,
    cuda=None,
    fake=lambda vectors, *rest: (
        torch.empty_like(vectors),
        vectors.new_empty(vectors.size(0) if rest[-1] >= 0 else 0, vectors.size(2)),
    ),
    backward=operator(
        f"vector_sum_backward(Tensor grad, Tensor grad_total, {_OPERANDS}, bool needs_vectors, "
        "bool needs_unit) -> (Tensor dvectors, Tensor dedge, Tensor dunit, Tensor dx)",
        cpu=cpu.backward,
        cuda=None,
        fake=_fake_backward,
    ),
)


def vector_sum(
    vectors: Tensor,
    edge: Tensor,
    unit: Tensor | None,
    edges: Edges,
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
        edges: their ends and pointers.
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
    out, total = _vector_sum(*contiguous(vectors, edge, unit, x), edges, *places)
    return VectorSums(out, None if scalar is None else total)
