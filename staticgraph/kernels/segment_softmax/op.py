"""``segment_softmax`` as an operator of torch: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.segment_softmax import cpu


@torch.library.custom_op("staticgraph::segment_softmax", mutates_args=(), device_types="cpu")
def _forward(values: Tensor, ptr: Tensor) -> Tensor:
    wide = torch.promote_types(values.dtype, torch.float32)
    out = torch.empty(values.shape, dtype=wide)
    cpu.forward(values.detach().to(wide).numpy(), ptr.numpy(), out.numpy())
    return out.to(values.dtype)


@torch.library.custom_op(
    "staticgraph::segment_softmax_backward", mutates_args=(), device_types="cpu"
)
def _backward(grad: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    wide = torch.promote_types(out.dtype, torch.float32)
    dvalues = torch.empty(out.shape, dtype=wide)
    cpu.backward(grad.to(wide).numpy(), out.to(wide).numpy(), ptr.numpy(), dvalues.numpy())
    return dvalues.to(out.dtype)


@_forward.register_kernel("cuda")
def _(values, ptr):
    from staticgraph.kernels.segment_softmax import gpu

    return gpu.forward(values, ptr)


@_backward.register_kernel("cuda")
def _(grad, out, ptr):
    from staticgraph.kernels.segment_softmax import gpu

    return gpu.backward(grad, out, ptr)


@_forward.register_fake
def _(values, ptr):
    return torch.empty_like(values)


@_backward.register_fake
def _(grad, out, ptr):
    return torch.empty_like(out)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(output, inputs[1])


def _derivative(ctx, grad):
    return _backward(grad.contiguous(), *ctx.saved_tensors), None


_forward.register_autograd(_derivative, setup_context=_setup)


def segment_softmax(values: Tensor, ptr: Tensor) -> Tensor:
    """``out[r] = exp(values[r]) / sum of exp(values)`` over the segment of ``r``, by columns.

    Args:
        values: ``[R, F]``; half precisions are added up in float32.
        ptr: ``[S + 1]`` ascending from 0 to ``R``: ``row_ptr`` for edges, ``ptr`` for nodes.

    Returns:
        ``[R, F]``, differentiable once. The same bits every time.
    """
    return _forward(values.contiguous(), ptr)
