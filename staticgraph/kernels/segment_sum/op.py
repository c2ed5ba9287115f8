"""``segment_sum`` as an operator of torch: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.segment_sum import cpu


@torch.library.custom_op("staticgraph::segment_sum", mutates_args=(), device_types="cpu")
def _forward(values: Tensor, ptr: Tensor, mean: bool) -> Tensor:
    wide = values if values.dtype == torch.float64 else values.float()
    out = wide.new_empty(len(ptr) - 1, values.size(1))
    cpu.forward(wide.detach().numpy(), ptr.numpy(), mean, out.numpy())
    return out.to(values.dtype)


@torch.library.custom_op("staticgraph::segment_sum_backward", mutates_args=(), device_types="cpu")
def _backward(grad: Tensor, ptr: Tensor, rows: int, mean: bool) -> Tensor:
    wide = grad if grad.dtype == torch.float64 else grad.float()
    dvalues = wide.new_empty(rows, grad.size(1))
    cpu.backward(wide.contiguous().numpy(), ptr.numpy(), mean, dvalues.numpy())
    return dvalues.to(grad.dtype)


@_forward.register_kernel("cuda")
def _(values, ptr, mean):
    from staticgraph.kernels.segment_sum import gpu

    return gpu.forward(values, ptr, mean)


@_backward.register_kernel("cuda")
def _(grad, ptr, rows, mean):
    from staticgraph.kernels.segment_sum import gpu

    return gpu.backward(grad, ptr, rows, mean)


@_forward.register_fake
def _(values, ptr, mean):
    return values.new_empty(ptr.size(0) - 1, values.size(1))


@_backward.register_fake
def _(grad, ptr, rows, mean):
    return grad.new_empty(rows, grad.size(1))


def _setup(ctx, inputs, output):
    values, ptr, ctx.mean = inputs
    ctx.save_for_backward(ptr)
    ctx.rows = values.size(0)


def _derivative(ctx, grad):
    (ptr,) = ctx.saved_tensors
    return _backward(grad, ptr, ctx.rows, ctx.mean), None, None


_forward.register_autograd(_derivative, setup_context=_setup)


def segment_sum(values: Tensor, ptr: Tensor, *, mean: bool = False) -> Tensor:
    """``out[s] = sum of values[ptr[s]:ptr[s + 1]]``: sum and mean pooling without atomics.

    Args:
        values: ``[R, F]``; half precisions are added up in float32.
        ptr: ``[S + 1]`` int64 ascending from 0 to ``R``; as ``batch.ptr`` of a static batch.
        mean: divide by the rows of the segment, at least 1.

    Returns:
        ``[S, F]``, differentiable once. The same bits every time.
    """
    return _forward(values.contiguous(), ptr, mean)
