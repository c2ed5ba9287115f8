"""``linear`` as a torch operator: oneDNN and torch on a CPU, torch and Triton on CUDA.

Operands may differ in dtype from the result: they are rounded to the result's dtype as autocast
would do, and each gradient has the dtype of its operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.linear.cpu import onednn_gains, onednn_product
from staticgraph.kernels.linear.limits import TICKETS, chunks_of, fits
from staticgraph.kernels.register import LIBRARY, NAMESPACE, operator


def linear_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    relu: bool,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes ``linear``; differentiable, on any device.

    Arguments as in :func:`staticgraph.kernels.linear`.
    """
    dtype = dtype or x.dtype
    out = F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    return out.relu() if relu else out


Product = Callable[[Tensor, Tensor], Tensor]


def torch_product(a: Tensor, b: Tensor) -> Tensor:
    """Computes ``a @ b.T``; differentiable."""
    return a @ b.t()


def backward_by(
    products: Sequence[Product],
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    out: Tensor | None,
    into: Tensor | None,
    into_weight: Tensor | None,
    needs: Sequence[bool] = (True, True, True),
) -> Any:
    """The gradients of ``x``, weight and bias that are needed, others None; the first two by
    ``products``, that of the weight in its layout."""
    if out is not None:
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
    dx = dweight = dbias = None
    if needs[0]:
        dx = _sum(products[0](grad, weight.to(grad.dtype).t()).to(x.dtype), into)
    if needs[1]:
        sides = grad.t(), x.to(grad.dtype).t()
        transposed = not weight.is_contiguous()
        dweight = products[1](*reversed(sides)).t() if transposed else products[1](*sides)
        dweight = _sum(dweight.to(weight.dtype), into_weight)
    if needs[2]:
        wide = torch.promote_types(grad.dtype, torch.float32)
        dbias = grad.sum(0, dtype=wide).to(weight.dtype)
    return dx, dweight, dbias


def _sum(gradient: Tensor, into: Tensor | None) -> Tensor:
    if into is None:
        return gradient
    differentiable = gradient.requires_grad or into.requires_grad
    return gradient + into if differentiable else gradient.add_(into)


def _forward_on_cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, dtype: torch.dtype
) -> Tensor:
    if _products_on_cpu(x, weight, dtype)[0] is torch_product:
        return linear_reference(x, weight, bias, relu, dtype)
    out = onednn_product(x, weight, bias)
    return out.relu_() if relu else out  # oneDNN's own ReLU turns NaN into 0


def _backward_on_cpu(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    products = _products_on_cpu(x, weight, grad.dtype)
    return backward_by(products, grad, x, weight, *rest[:3])


def _products_on_cpu(x: Tensor, weight: Tensor, dtype: torch.dtype) -> list[Product]:
    """The products of a layer, or of its input's gradient, and of its weight's gradient."""
    gains = [False, False]
    if x.dtype == weight.dtype == dtype == torch.float32:
        gains = [onednn_gains(*shape_of(x, weight), of_weight) for of_weight in (False, True)]
    return [onednn_product if gain else torch_product for gain in gains]


def launches(x: Tensor, weight: Tensor, dtype: torch.dtype, relu: bool, biased: bool) -> int:
    """Number of CUDA launches of a layer's forward."""
    if by_library(x, weight, dtype):
        return 2 if relu and not biased else 1
    return 1


def backward_launches(grad: Tensor, x: Tensor, weight: Tensor, relu: bool) -> int:
    """Number of CUDA launches of a layer's backward."""
    if not fits(*shape_of(x, weight), grad.dtype, x.dtype, weight.dtype):
        return 3 + relu
    return 1


def shape_of(x: Tensor, weight: Tensor) -> tuple[int, int, int]:
    """Returns rows, inputs and outputs of a layer."""
    return x.size(0), weight.size(1), weight.size(0)


def by_library(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether forward on CUDA is torch's product: no cast needed, or too large for the
    Triton kernel."""
    if x.dtype == weight.dtype == dtype:
        return True
    return not fits(*shape_of(x, weight), x.dtype, weight.dtype, dtype)


def zero_tickets(device: torch.device) -> Tensor:
    """Returns what backward on CUDA counts finished chunks of rows with: zeros that are zero again
    when it is done."""
    return torch.zeros(TICKETS, dtype=torch.int32, device=device)


# An operator, so that the layers of a compiled graph share the result: Inductor fills zeros of
# torch's own for each.
LIBRARY.define("tickets(Device device) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
LIBRARY.impl("tickets", zero_tickets, "CompositeExplicitAutograd")
torch.library.register_fake(f"{NAMESPACE}::tickets", zero_tickets, lib=LIBRARY)

LINEAR = operator(
    "linear(Tensor x, Tensor weight, Tensor? bias, bool relu, ScalarType dtype) -> Tensor",
    cpu=_forward_on_cpu,
    cuda="linear.small:on_cuda",
    fake=lambda x, weight, bias, relu, dtype: x.new_empty(x.size(0), weight.size(0), dtype=dtype),
)
_forward = LINEAR.overload
_backward = operator(
    "linear_backward(Tensor grad, Tensor x, Tensor weight, Tensor? out, Tensor? into, "
    "Tensor? into_weight, Tensor? tickets) "
    "-> (Tensor, Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda="linear.small:backward_on_cuda",
    fake=lambda grad, x, weight, *_: (
        torch.empty_like(x),
        torch.empty_like(weight),
        weight.new_empty(weight.size(0)),
    ),
).overload


class Linear(torch.autograd.Function):
    """Autograd function of ``linear``; the input may be handed on to its next reader.

    The weight is handed on to the derivative, so that the second derivative's gradient of it is
    added in the same pass.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Returns the operator's ``[N, out]``, the weight, and ``x`` if it is handed on."""
        x, weight, bias, relu, dtype, handed_on = inputs
        out, same = _forward(x, weight, bias, relu, dtype), weight.view_as(weight)
        ctx.save_for_backward(x, same, out if relu else None)
        ctx.set_materialize_grads(False)
        return (out, same, x.view_as(x)) if handed_on else (out, same)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of ``x``, weight and bias; the first two include those of what was
        handed on."""
        grad, into_weight, into, *_ = *grads, None
        if grad is None:
            return into, into_weight, None, None, None, None
        x, weight, out = ctx.saved_tensors
        needs, products = ctx.needs_input_grad[:3], None
        if torch.is_grad_enabled():
            products = (linear, torch_product)
        elif x.device.type == "cpu" and not all(needs[:2]):
            products = _products_on_cpu(x, weight, grad.dtype)
        operands = grad, x, weight, out, into, into_weight
        if products is not None:
            dx, dweight, dbias = backward_by(products, *operands, needs)
        else:
            tickets = None
            if x.device.type == "cuda" and chunks_of(x.size(0))[0] > 1:
                tickets = torch.ops.staticgraph.tickets(x.device)
            dx, dweight, dbias = _backward(*operands, tickets)
        return dx, dweight, dbias if needs[2] else None, None, None, None


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes ``x @ weight.T + bias``, with ReLU if requested.

    Args:
        x: ``[R, I]``.
        weight: ``[O, I]``.
        bias: ``[O]``, in the dtype of ``weight``.
        relu: apply ReLU in the same pass.
        dtype: dtype of the result, to which operands are rounded before they are multiplied; None
            for that of ``x``. Sums are float32.

    Returns:
        ``[R, O]``, differentiable any number of times. The same bits on one machine and number of
        threads.
    """
    dtype = dtype or x.dtype
    x, weight, bias = _prepared(x, weight, bias, dtype)
    return Linear.apply(x, weight, bias, relu, dtype, False)[0]


def linear_handed_on(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns :func:`linear`, and ``x`` for its next reader.

    Later code should read the returned ``x`` instead of the one passed in: the product in backward
    adds the gradient that arrives through it, which autograd would do in a separate operation.
    """
    dtype = dtype or x.dtype
    cast_x, weight, bias = _prepared(x, weight, bias, dtype)
    if cast_x.dtype != x.dtype:
        return Linear.apply(cast_x, weight, bias, relu, dtype, False)[0], x
    out, _, same = Linear.apply(cast_x, weight, bias, relu, dtype, True)
    return out, same


def _prepared(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Operands without gaps, of which the weight may be transposed; those of torch's own products
    in ``dtype``, so that they are cast once and saved that way."""
    x = x.contiguous()
    if not weight.is_contiguous() and not weight.t().is_contiguous():
        weight = weight.contiguous()
    if x.device.type != "cuda" or not by_library(x, weight, dtype):
        return x, weight, bias
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
