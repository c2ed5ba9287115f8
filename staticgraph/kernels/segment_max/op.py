"""``segment_max`` as an operator of torch: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.segment_max import cpu


@torch.library.custom_op("staticgraph::segment_max", mutates_args=(), device_types="cpu")
def _forward(values: Tensor, ptr: Tensor) -> Tensor:
    wide = torch.promote_types(values.dtype, torch.float32)
    out = torch.empty(len(ptr) - 1, values.size(1), dtype=wide)
    cpu.forward(values.detach().to(wide).numpy(), ptr.numpy(), out.numpy())
    return out.to(values.dtype)


@torch.library.custom_op("staticgraph::segment_max_backward", mutates_args=(), device_types="cpu")
def _backward(grad: Tensor, values: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    wide = torch.promote_types(values.dtype, torch.float32)
    dvalues = torch.empty(values.shape, dtype=wide)
    grads, rows, largest = (value.to(wide).numpy() for value in (grad, values, out))
    cpu.backward(grads, rows, largest, ptr.numpy(), dvalues.numpy())
    return dvalues.to(values.dtype)


@_forward.register_kernel("cuda")
def _(values, ptr):
    from staticgraph.kernels.segment_max import gpu

    return gpu.forward(values, ptr)


@_backward.register_kernel("cuda")
def _(grad, values, out, ptr):
    from staticgraph.kernels.segment_max import gpu

    return gpu.backward(grad, values, out, ptr)


@_forward.register_fake
def _(values, ptr):
    return values.new_empty(ptr.size(0) - 1, values.size(1))


@_backward.register_fake
def _(grad, values, out, ptr):
    return torch.empty_like(values)


def _setup(ctx, inputs, output):
    values, ptr = inputs
    ctx.save_for_backward(values, output, ptr)


def _derivative(ctx, grad):
    return _backward(grad.contiguous(), *ctx.saved_tensors), None


_forward.register_autograd(_derivative, setup_context=_setup)


def segment_max(values: Tensor, ptr: Tensor) -> Tensor:
    """``out[s] = largest of values[ptr[s]:ptr[s + 1]]``, column by column; zero for no rows.

    Equal largest values share the gradient as torch's ``scatter_reduce(include_self=False)``, on
    which PyG's pools rest, shares it: evenly, and where the largest is exactly zero one part of it
    goes to the zero that the reduction began with.

    Args:
        values: ``[R, F]``.
        ptr: ``[S + 1]`` ascending from 0 to ``R``; as ``batch.ptr`` of a static batch.

    Returns:
        ``[S, F]``, differentiable once. The same bits every time.
    """
    return _forward(values.contiguous(), ptr)
