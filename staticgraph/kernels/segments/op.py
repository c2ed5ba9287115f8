"""Segment reductions as torch operators: CPU and Triton kernels, shapes, derivatives."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.register import differentiable_once, operator
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


# ---------------------------------------------------------------------- sum and mean


def _sum_on_cpu(values: Tensor, ptr: Tensor, mean: bool) -> Tensor:
    wide = values if values.dtype == torch.float64 else values.float()
    out = wide.new_empty(len(ptr) - 1, values.size(1))
    cpu.sum_forward(wide.detach().numpy(), ptr.numpy(), mean, out.numpy())
    return out.to(values.dtype)


def _sum_backward_on_cpu(grad: Tensor, ptr: Tensor, rows: int, mean: bool) -> Tensor:
    wide = grad if grad.dtype == torch.float64 else grad.float()
    dvalues = wide.new_empty(rows, grad.size(1))
    cpu.sum_backward(wide.contiguous().numpy(), ptr.numpy(), mean, dvalues.numpy())
    return dvalues.to(grad.dtype)


def _sum_on_cuda(*arguments):
    from staticgraph.kernels.segments import gpu

    return gpu.sum_forward(*arguments)


def _sum_backward_on_cuda(*arguments):
    from staticgraph.kernels.segments import gpu

    return gpu.sum_backward(*arguments)


_sum = operator(
    "segment_sum(Tensor values, Tensor ptr, bool mean) -> Tensor",
    cpu=_sum_on_cpu,
    cuda=_sum_on_cuda,
    fake=lambda values, ptr, mean: values.new_empty(ptr.size(0) - 1, values.size(1)),
)
_sum_backward = operator(
    "segment_sum_backward(Tensor grad, Tensor ptr, SymInt rows, bool mean) -> Tensor",
    cpu=_sum_backward_on_cpu,
    cuda=_sum_backward_on_cuda,
    fake=lambda grad, ptr, rows, mean: grad.new_empty(rows, grad.size(1)),
)


class SegmentSum(torch.autograd.Function):
    """Autograd function of ``segment_sum``."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the operator's ``[S, F]``."""
        values, ptr, ctx.mean = inputs
        ctx.save_for_backward(ptr)
        ctx.rows = values.size(0)
        return _sum(values, ptr, ctx.mean)

    @staticmethod
    @differentiable_once("segment_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradient of the values, ``[R, F]``."""
        (ptr,) = ctx.saved_tensors
        return _sum_backward(grads[0], ptr, ctx.rows, ctx.mean), None, None


def segment_sum(values: Tensor, ptr: Tensor, *, mean: bool = False) -> Tensor:
    """Computes ``out[s] = sum of values[ptr[s]:ptr[s + 1]]``: sum and mean pooling without atomics.

    Args:
        values: ``[R, F]``; half precisions are accumulated in float32.
        ptr: ``[S + 1]`` int64, ascending from 0 to ``R``, such as ``batch.ptr`` of a static batch.
        mean: divide by the number of rows of the segment, at least 1.

    Returns:
        ``[S, F]``, differentiable once. Bitwise deterministic.
    """
    return SegmentSum.apply(values.contiguous(), ptr, mean)


# ---------------------------------------------------------------------- maximum


def _max_on_cpu(values: Tensor, ptr: Tensor) -> Tensor:
    wide = torch.promote_types(values.dtype, torch.float32)
    out = torch.empty(len(ptr) - 1, values.size(1), dtype=wide)
    cpu.max_forward(values.detach().to(wide).numpy(), ptr.numpy(), out.numpy())
    return out.to(values.dtype)


def _max_backward_on_cpu(grad: Tensor, values: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    wide = torch.promote_types(values.dtype, torch.float32)
    dvalues = torch.empty(values.shape, dtype=wide)
    grads, rows, largest = (value.to(wide).numpy() for value in (grad, values, out))
    cpu.max_backward(grads, rows, largest, ptr.numpy(), dvalues.numpy())
    return dvalues.to(values.dtype)


def _max_on_cuda(*arguments):
    from staticgraph.kernels.segments import gpu

    return gpu.max_forward(*arguments)


def _max_backward_on_cuda(*arguments):
    from staticgraph.kernels.segments import gpu

    return gpu.max_backward(*arguments)


def _max_setup(ctx, inputs, output):
    values, ptr = inputs
    ctx.save_for_backward(values, output, ptr)


_max_backward = operator(
    "segment_max_backward(Tensor grad, Tensor values, Tensor out, Tensor ptr) -> Tensor",
    cpu=_max_backward_on_cpu,
    cuda=_max_backward_on_cuda,
    fake=lambda grad, values, *_: torch.empty_like(values),
)
_max = operator(
    "segment_max(Tensor values, Tensor ptr) -> Tensor",
    cpu=_max_on_cpu,
    cuda=_max_on_cuda,
    fake=lambda values, ptr: values.new_empty(ptr.size(0) - 1, values.size(1)),
    derivative=lambda ctx, grad: (_max_backward(grad.contiguous(), *ctx.saved_tensors), None),
    setup=_max_setup,
)


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


# ---------------------------------------------------------------------- softmax


def _softmax_on_cpu(values: Tensor, ptr: Tensor) -> Tensor:
    wide = torch.promote_types(values.dtype, torch.float32)
    out = torch.empty(values.shape, dtype=wide)
    cpu.softmax_forward(values.detach().to(wide).numpy(), ptr.numpy(), out.numpy())
    return out.to(values.dtype)


def _softmax_backward_on_cpu(grad: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    wide = torch.promote_types(out.dtype, torch.float32)
    dvalues = torch.empty(out.shape, dtype=wide)
    cpu.softmax_backward(grad.to(wide).numpy(), out.to(wide).numpy(), ptr.numpy(), dvalues.numpy())
    return dvalues.to(out.dtype)


def _softmax_on_cuda(*arguments):
    from staticgraph.kernels.segments import gpu

    return gpu.softmax_forward(*arguments)


def _softmax_backward_on_cuda(*arguments):
    from staticgraph.kernels.segments import gpu

    return gpu.softmax_backward(*arguments)


def _softmax_setup(ctx, inputs, output):
    ctx.save_for_backward(output, inputs[1])


_softmax_backward = operator(
    "segment_softmax_backward(Tensor grad, Tensor out, Tensor ptr) -> Tensor",
    cpu=_softmax_backward_on_cpu,
    cuda=_softmax_backward_on_cuda,
    fake=lambda grad, out, ptr: torch.empty_like(out),
)
_softmax = operator(
    "segment_softmax(Tensor values, Tensor ptr) -> Tensor",
    cpu=_softmax_on_cpu,
    cuda=_softmax_on_cuda,
    fake=lambda values, ptr: torch.empty_like(values),
    derivative=lambda ctx, grad: (_softmax_backward(grad.contiguous(), *ctx.saved_tensors), None),
    setup=_softmax_setup,
)


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
