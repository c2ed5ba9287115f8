"""``neighbour_max`` as a torch operator: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.jit import kernel, kernel_part
from staticgraph.kernels.register import operator
from staticgraph.store.columns import Array


@kernel_part
def _relu(value: Any, zero: Any) -> Any:
    """Applies ReLU; NaN propagates."""
    return zero if value <= zero else value


@kernel
def forward(x: Array, edge: Array, src: Array, row_ptr: Array, out: Array) -> None:
    """Runs forward; writes every element of ``out``."""
    width, zero, edged = x.shape[1], x.dtype.type(0), edge.shape[0] > 0
    for i in range(len(x)):
        first, last = row_ptr[i], row_ptr[i + 1]
        if last == first:
            for f in range(width):
                out[i, f] = zero
        for e in range(first, last):
            j = src[e]
            for f in range(width):
                value = _relu(x[j, f] + edge[e, f], zero) if edged else x[j, f]
                best = out[i, f]
                out[i, f] = value if e == first or value > best or value != value else best


@kernel
def backward(
    grad: Array,
    x: Array,
    edge: Array,
    out: Array,
    src: Array,
    row_ptr: Array,
    dx: Array,
    dedge: Array,
) -> None:
    """Runs backward; ``dx`` must be zeroed, and every element of ``dedge`` is written."""
    width, zero, one, edged = x.shape[1], x.dtype.type(0), x.dtype.type(1), edge.shape[0] > 0
    share = np.empty(width, x.dtype)
    for i in range(len(x)):
        for f in range(width):
            share[f] = one if out[i, f] == zero else zero
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            for f in range(width):
                value = _relu(x[j, f] + edge[e, f], zero) if edged else x[j, f]
                share[f] += one if value == out[i, f] else zero
        for f in range(width):
            share[f] = grad[i, f] / share[f]
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            if edged:
                for f in range(width):
                    value = x[j, f] + edge[e, f]
                    chosen = value > zero and value == out[i, f]
                    part = share[f] * (one if chosen else zero)
                    dx[j, f] += part
                    dedge[e, f] = part
            else:
                for f in range(width):
                    dx[j, f] += share[f] * (one if x[j, f] == out[i, f] else zero)


def neighbour_max_reference(x: Tensor, edge: Tensor | None, src: Tensor, dst: Tensor) -> Tensor:
    """Computes ``neighbour_max`` with torch's ``scatter_reduce``, differentiable, on any device.

    The way ties share a gradient is that of ``scatter_reduce``. Arguments as in
    :func:`staticgraph.kernels.neighbour_max`; edges in any order.
    """
    rows = x.index_select(0, src)
    rows = rows if edge is None else (rows + edge).relu()
    into = dst[:, None].expand_as(rows)
    return rows.new_zeros(x.shape).scatter_reduce(0, into, rows, "amax", include_self=False)


def _on_cpu(
    x: Tensor,
    edge: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    out = torch.empty(x.shape, dtype=wide)
    forward(_array(x, wide), _array(edge, wide), src.numpy(), row_ptr.numpy(), out.numpy())
    return out.to(x.dtype)


def _backward_on_cpu(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    out: Tensor,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    dx = torch.zeros(x.shape, dtype=wide)
    dedge = torch.empty((0, 0) if edge is None else edge.shape, dtype=wide)
    grads, rows, edges = (_array(value, wide) for value in (grad, x, edge))
    largest = _array(out, wide)
    if edge is not None and wide != out.dtype:  # the result was rounded, the sums were not
        forward(rows, edges, src.numpy(), row_ptr.numpy(), largest)
    backward(grads, rows, edges, largest, src.numpy(), row_ptr.numpy(), dx.numpy(), dedge.numpy())
    return dx.to(x.dtype), x.new_empty(0) if edge is None else dedge.to(x.dtype)


def _on_cuda(x, edge, src, dst, row_ptr, col_ptr, transpose):
    from staticgraph.kernels.neighbour_max import gpu

    return gpu.forward(x, edge, src, row_ptr)


def _backward_on_cuda(*args):
    from staticgraph.kernels.neighbour_max import gpu

    return gpu.backward(*args)


def _fake_backward(grad, x, edge, *_):
    return torch.empty_like(x), x.new_empty(0) if edge is None else torch.empty_like(edge)


def _setup(ctx, inputs, output):
    x, edge, *rest = inputs
    ctx.save_for_backward(x, edge, output, *rest)


def _derivative(ctx, grad):
    dx, dedge = _backward(grad.contiguous(), *ctx.saved_tensors)
    return dx, dedge if ctx.needs_input_grad[1] else None, *(None,) * 5


_backward = operator(
    "neighbour_max_backward(Tensor grad, Tensor x, Tensor? edge, Tensor out, Tensor src, "
    "Tensor dst, Tensor row_ptr, Tensor col_ptr, Tensor transpose) -> (Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=_fake_backward,
)
_forward = operator(
    "neighbour_max(Tensor x, Tensor? edge, Tensor src, Tensor dst, Tensor row_ptr, "
    "Tensor col_ptr, Tensor transpose) -> Tensor",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=lambda x, *_: torch.empty_like(x),
    derivative=_derivative,
    setup=_setup,
)


def neighbour_max(
    x: Tensor,
    edge: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
) -> Tensor:
    """Computes ``out[i] = largest over edges e into i of x[src[e]]``, or of
    ``ReLU(x[src[e]] + edge[e])``.

    Ties share the gradient as in :func:`staticgraph.kernels.segment_max`.

    Args:
        x: ``[N, F]``.
        edge: ``[E, F]``, or None if the messages are the rows themselves.
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.

    Returns:
        ``[N, F]``, zero for a node without incoming edges; differentiable once in ``x`` and
        ``edge``. Bitwise deterministic.
    """
    if edge is not None:
        dtype = torch.promote_types(x.dtype, edge.dtype)
        x, edge = x.to(dtype), edge.to(dtype).contiguous()
    return _forward(x.contiguous(), edge, src, dst, row_ptr, col_ptr, transpose)


def _array(value: Tensor | None, dtype: torch.dtype) -> Any:
    """Returns the tensor as a NumPy array in a dtype that numba supports; an empty one for None."""
    if value is None:
        return torch.empty((0, 0), dtype=dtype).numpy()
    return value.detach().to(dtype).numpy()
