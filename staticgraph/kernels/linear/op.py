"""``linear`` as an operator of torch: oneDNN on a CPU, torch's products and Triton on CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.register import operator


def _onednn() -> Any:
    """Inductor's CPU lowering of a linear layer: private, so asked for and never assumed."""
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


ONEDNN = _onednn()


def available() -> bool:
    """Whether this torch has oneDNN's linear operator."""
    return ONEDNN is not None


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None, post: str = "none") -> Tensor:
    """``a @ b.T + bias`` and perhaps ReLU; either operand may be a transposed view."""
    assert ONEDNN is not None
    return ONEDNN(a, b, bias, post, [], "")


def _on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return _product(x, weight, bias, "relu" if relu else "none")


def _backward_on_cpu(
    grad: Tensor, x: Tensor, weight: Tensor, out: Tensor | None, into: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if out is not None:
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
    dx = _product(grad, weight.t())
    if into is not None:
        dx.add_(into)
    return dx, _product(grad.t(), x.t()), grad.sum(0)


def _on_cuda(*arguments):
    from staticgraph.kernels.linear import gpu

    return gpu.forward(*arguments)


def _backward_on_cuda(*arguments):
    from staticgraph.kernels.linear import gpu

    return gpu.backward(*arguments)


_forward = operator(
    "linear(Tensor x, Tensor weight, Tensor? bias, bool relu) -> Tensor",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=lambda x, weight, *_: x.new_empty(x.size(0), weight.size(0)),
)
_backward = operator(
    "linear_backward(Tensor grad, Tensor x, Tensor weight, Tensor? out, Tensor? into) "
    "-> (Tensor, Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=lambda grad, x, weight, *_: (
        torch.empty_like(x),
        torch.empty_like(weight),
        weight.new_empty(weight.size(0)),
    ),
)


class Linear(torch.autograd.Function):
    """The derivative; the input may be handed on to whoever reads it next."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        x, weight, bias, relu, handed_on = inputs
        out = _forward(x, weight, bias, relu)
        ctx.save_for_backward(x, weight, out if relu else None)
        ctx.handed_on = handed_on
        return (out, x.view_as(x)) if handed_on else out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        into = grads[1] if ctx.handed_on else None
        dx, dweight, dbias = _backward(grads[0], *ctx.saved_tensors, into)
        return dx, dweight, dbias if ctx.needs_input_grad[2] else None, None, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """``x @ weight.T + bias``, with ReLU if asked.

    Args:
        x: ``[R, I]``; float32 on the CPU.
        weight: ``[O, I]``.
        bias: ``[O]``.
        relu: apply ReLU in the same pass.

    Returns:
        ``[R, O]``, differentiable once.
    """
    return Linear.apply(x.contiguous(), weight, bias, relu, False)


def linear_handed_on(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False
) -> tuple[Tensor, Tensor]:
    """:func:`linear`, and ``x`` to be read from now on: whatever gradient comes back through it is
    added by the product, where autograd would need an operation of its own."""
    out, x = Linear.apply(x.contiguous(), weight, bias, relu, True)
    return out, x
