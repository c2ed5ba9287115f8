"""``segment_sum`` as an operator of torch: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.register import operator
from staticgraph.kernels.segment_sum import cpu


def _on_cpu(values: Tensor, ptr: Tensor, mean: bool) -> Tensor:
    wide = values if values.dtype == torch.float64 else values.float()
    out = wide.new_empty(len(ptr) - 1, values.size(1))
    cpu.forward(wide.detach().numpy(), ptr.numpy(), mean, out.numpy())
    return out.to(values.dtype)


def _backward_on_cpu(grad: Tensor, ptr: Tensor, rows: int, mean: bool) -> Tensor:
    wide = grad if grad.dtype == torch.float64 else grad.float()
    dvalues = wide.new_empty(rows, grad.size(1))
    cpu.backward(wide.contiguous().numpy(), ptr.numpy(), mean, dvalues.numpy())
    return dvalues.to(grad.dtype)


def _on_cuda(*arguments):
    from staticgraph.kernels.segment_sum import gpu

    return gpu.forward(*arguments)


def _backward_on_cuda(*arguments):
    from staticgraph.kernels.segment_sum import gpu

    return gpu.backward(*arguments)


_forward = operator(
    "segment_sum(Tensor values, Tensor ptr, bool mean) -> Tensor",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=lambda values, ptr, mean: values.new_empty(ptr.size(0) - 1, values.size(1)),
)
_backward = operator(
    "segment_sum_backward(Tensor grad, Tensor ptr, SymInt rows, bool mean) -> Tensor",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=lambda grad, ptr, rows, mean: grad.new_empty(rows, grad.size(1)),
)


class SegmentSum(torch.autograd.Function):
    """The derivative, by the rows."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        values, ptr, ctx.mean = inputs
        ctx.save_for_backward(ptr)
        ctx.rows = values.size(0)
        return _forward(values, ptr, ctx.mean)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (ptr,) = ctx.saved_tensors
        return _backward(grads[0], ptr, ctx.rows, ctx.mean), None, None


def segment_sum(values: Tensor, ptr: Tensor, *, mean: bool = False) -> Tensor:
    """``out[s] = sum of values[ptr[s]:ptr[s + 1]]``: sum and mean pooling without atomics.

    Args:
        values: ``[R, F]``; half precisions are added up in float32.
        ptr: ``[S + 1]`` int64 ascending from 0 to ``R``; as ``batch.ptr`` of a static batch.
        mean: divide by the rows of the segment, at least 1.

    Returns:
        ``[S, F]``, differentiable once. The same bits every time.
    """
    return SegmentSum.apply(values.contiguous(), ptr, mean)
