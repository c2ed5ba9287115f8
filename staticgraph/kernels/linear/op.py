"""``linear`` as an operator of torch: oneDNN on a CPU, torch's own elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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


@torch.library.custom_op("staticgraph::linear", mutates_args=(), device_types="cpu")
def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return _product(x, weight, bias, "relu" if relu else "none")


@torch.library.custom_op("staticgraph::linear_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, out: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if out is not None:
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
    return _product(grad, weight.t()), _product(grad.t(), x.t()), grad.sum(0)


@_forward.register_fake
def _(x, weight, bias, relu):
    return x.new_empty(x.size(0), weight.size(0))


@_backward.register_fake
def _(grad, x, weight, out):
    return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(weight.size(0))


def _setup(ctx, inputs, output):
    x, weight, _, relu = inputs
    ctx.save_for_backward(x, weight, output if relu else None)


def _derivative(ctx, grad):
    x, weight, out = ctx.saved_tensors
    dx, dweight, dbias = _backward(grad, x, weight, out)
    return dx, dweight, dbias if ctx.needs_input_grad[2] else None, None


_forward.register_autograd(_derivative, setup_context=_setup)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """``x @ weight.T + bias``, with ReLU if asked, by oneDNN.

    Args:
        x: ``[R, I]`` float32 on the CPU.
        weight: ``[O, I]``.
        bias: ``[O]``.
        relu: apply ReLU in the same pass.

    Returns:
        ``[R, O]``, differentiable once.
    """
    return _forward(x.contiguous(), weight, bias, relu)
