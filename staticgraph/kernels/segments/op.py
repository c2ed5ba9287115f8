"""Segment reductions as torch operators: references, registration, shapes."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from staticgraph.kernels.register import operator
from staticgraph.kernels.segments import cpu


def segment_sum_reference(values: Tensor, ptr: Tensor, mean: bool) -> Tensor:
    """Computes ``segment_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.segment_sum`.
    """
    wide = torch.promote_types(values.dtype, torch.float32)
    rows = torch.arange(len(values), device=values.device)
    segment = torch.searchsorted(ptr, rows, right=True) - 1
    out = values.new_zeros(len(ptr) - 1, values.size(1), dtype=wide)
    out = out.index_add(0, segment, values.to(wide))
    if mean:
        out = out / ptr.diff().clamp(min=1).to(wide).unsqueeze(-1)
    return out.to(values.dtype)


def segment_max_reference(values: Tensor, ptr: Tensor) -> Tensor:
    """Computes ``segment_max`` with torch's ``scatter_reduce``, differentiable, on any device.

    The way ties share a gradient is that of ``scatter_reduce``. Arguments as in
    :func:`staticgraph.kernels.segment_max`.
    """
    rows = torch.arange(len(values), device=values.device)
    segment = (torch.searchsorted(ptr, rows, right=True) - 1)[:, None].expand_as(values)
    out = values.new_zeros(len(ptr) - 1, values.size(1))
    return out.scatter_reduce(0, segment, values, "amax", include_self=False)


def segment_softmax_reference(values: Tensor, ptr: Tensor) -> Tensor:
    """Computes ``segment_softmax``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.segment_softmax`.
    """
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    parts = [wide[a:b].softmax(0) for a, b in pairwise(ptr.tolist())]
    return torch.cat(parts).to(values.dtype)


def _pooled(values, ptr, *_):
    return values.new_empty(ptr.size(0) - 1, values.size(1))


_sum = operator(
    "segment_sum(Tensor values, Tensor ptr, bool mean) -> Tensor",
    cpu=cpu.sum_forward,
    cuda="segments.gpu:sum_forward",
    fake=_pooled,
    backward=operator(
        "segment_sum_backward(Tensor grad, Tensor ptr, SymInt rows_values, bool mean) "
        "-> (Tensor dvalues)",
        cpu=cpu.sum_backward,
        cuda="segments.gpu:sum_backward",
        fake=lambda grad, ptr, rows, mean: grad.new_empty(rows, grad.size(1)),
    ),
)
_max = operator(
    "segment_max(Tensor values, Tensor ptr) -> Tensor",
    cpu=cpu.max_forward,
    cuda="segments.gpu:max_forward",
    fake=_pooled,
    backward=operator(
        "segment_max_backward(Tensor grad, Tensor values, Tensor out, Tensor ptr) "
        "-> (Tensor dvalues)",
        cpu=cpu.max_backward,
        cuda="segments.gpu:max_backward",
        fake=lambda grad, values, *_: torch.empty_like(values),
    ),
)
_softmax = operator(
    "segment_softmax(Tensor values, Tensor ptr) -> Tensor",
    cpu=cpu.softmax_forward,
    cuda="segments.gpu:softmax_forward",
    fake=lambda values, ptr: torch.empty_like(values),
    backward=operator(
        "segment_softmax_backward(Tensor grad, Tensor out, Tensor ptr) -> (Tensor dvalues)",
        cpu=cpu.softmax_backward,
        cuda="segments.gpu:softmax_backward",
        fake=lambda grad, out, ptr: torch.empty_like(out),
    ),
)


def segment_sum(values: Tensor, ptr: Tensor, *, mean: bool = False) -> Tensor:
    """Computes ``out[s] = sum of values[ptr[s]:ptr[s + 1]]``: sum and mean pooling without atomics.

    Args:
        values: ``[R, F]``; half precisions are accumulated in float32.
        ptr: ``[S + 1]`` int64, ascending from 0 to ``R``, such as ``batch.ptr`` of a static batch.
        mean: divide by the number of rows of the segment, at least 1.

    Returns:
        ``[S, F]``, differentiable once. Bitwise deterministic.
    """
    return _sum(values.contiguous(), ptr, mean)


def segment_max(values: Tensor, ptr: Tensor) -> Tensor:
    """Computes ``out[s] = largest of values[ptr[s]:ptr[s + 1]]`` per column; zero for an empty
    segment.

    Ties share the gradient as in torch's ``scatter_reduce(include_self=False)``, on which PyG's
    pooling is based: evenly, and if the maximum is exactly zero, one more part goes to the zero
    that the reduction was initialised with.

    Args:
        values: ``[R, F]``.
        ptr: ``[S + 1]``, ascending from 0 to ``R``, such as ``batch.ptr`` of a static batch.

    Returns:
        ``[S, F]``, differentiable once. Bitwise deterministic.
    """
    return _max(values.contiguous(), ptr)


def segment_softmax(values: Tensor, ptr: Tensor) -> Tensor:
    """Computes ``out[r] = exp(values[r]) / sum of exp(values)`` over the segment of row ``r``, per
    column.

    Args:
        values: ``[R, F]``; half precisions are accumulated in float32.
        ptr: ``[S + 1]``, ascending from 0 to ``R``: ``row_ptr`` for edges, ``ptr`` for nodes.

    Returns:
        ``[R, F]``, differentiable once. Bitwise deterministic.
    """
    return _softmax(values.contiguous(), ptr)
