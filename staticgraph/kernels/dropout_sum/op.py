"""``dropout_sum`` as a torch operator: CPU kernel, Triton kernel, shapes, derivative.

torch's dropout stores a mask, and the sum after it is another pass. Here the mask is a function of
a seed that torch's own generator draws once per forward, of the site in the model, and of the
value's position: nothing is stored, and backward recomputes it. Since the seed is a tensor that the
step itself draws, a recorded step drops different values at every replay, and ``torch.manual_seed``
reproduces them. The mask of a row does not depend on the bucket that holds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.dropout_sum import cpu
from staticgraph.kernels.register import operator


def dropout_sum_reference(
    x: Tensor, residual: Tensor | None, mask: Tensor, p: float, relu: bool
) -> Tensor:
    """Computes ``dropout_sum``; differentiable, on any device.

    Args:
        mask: ``[R, F]`` bool, from :func:`staticgraph.kernels.dropout_sum.draw_mask`.
    """
    value = (x.relu() if relu else x) * mask.to(x.dtype) / (1 - p)
    return value if residual is None else residual + value


_SEEDS = 2**31 - 1


_fill = operator(
    "dropout_sum(Tensor x, Tensor? gate, Tensor? residual, Tensor seed, int site, float p) "
    "-> Tensor",
    cpu=cpu.fill,
    cuda="dropout_sum.gpu:fill",
    fake=lambda x, *_: torch.empty_like(x),
).overload


class DropoutSum(torch.autograd.Function):
    """Autograd function of ``dropout_sum``: backward is the same function of the gradient."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the operator's ``[N, F]``; saves only the seed, and with ReLU the gate, which is
        ``x`` without its gradient."""
        x, gate, residual, seed, ctx.site, ctx.p = inputs
        ctx.save_for_backward(seed, gate)
        return _fill(x, gate, residual, seed, ctx.site, ctx.p)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of ``x``, with the same values dropped, and of the residual."""
        seed, gate = ctx.saved_tensors
        grad = grads[0].contiguous()
        dx = DropoutSum.apply(grad, gate, None, seed, ctx.site, ctx.p)
        return dx, None, grad if ctx.needs_input_grad[2] else None, *(None,) * 3


def dropout_sum(
    x: Tensor,
    residual: Tensor | None,
    seed: Tensor,
    site: int,
    *,
    p: float,
    relu: bool = False,
) -> Tensor:
    """Computes ``residual + dropout(relu(x))``.

    Args:
        x: ``[R, F]``.
        residual: ``[R, F]`` of the same dtype; None adds nothing.
        seed: ``[1]`` int64, from :func:`draw_seed`.
        site: a number that differs between the places of a model that share the seed.
        p: fraction of the values to drop, in ``[0, 1)``.
        relu: apply ReLU first.

    Returns:
        ``[R, F]``, differentiable any number of times. The same seed and site drop the same values.

    Raises:
        ValueError: ``p`` is outside ``[0, 1)``.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p={p}: the share that is dropped must be from 0 up to, but not, 1")
    residual = None if residual is None else residual.to(x.dtype).contiguous()
    x = x.contiguous()
    return DropoutSum.apply(x, x.detach() if relu else None, residual, seed, site, p)


def draw_seed(device: torch.device) -> Tensor:
    """Draws a ``[1]`` int64 seed from the device's torch generator; call once per forward."""
    return torch.randint(_SEEDS, (1,), device=device)


def draw_mask(seed: Tensor, site: int, shape: torch.Size, p: float) -> Tensor:
    """Returns the mask ``[R, F]`` bool that :func:`dropout_sum` uses on the seed's device."""
    return _fill(torch.ones(shape, device=seed.device), None, None, seed, site, p) > 0
