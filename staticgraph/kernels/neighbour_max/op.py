"""``neighbour_max`` as a torch operator: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.neighbour_max import cpu
from staticgraph.kernels.register import operator


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
    cpu.forward(_array(x, wide), _array(edge, wide), src.numpy(), row_ptr.numpy(), out.numpy())
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
        cpu.forward(rows, edges, src.numpy(), row_ptr.numpy(), largest)
    cpu.backward(
        grads, rows, edges, largest, src.numpy(), row_ptr.numpy(), dx.numpy(), dedge.numpy()
    )
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
