"""``dropout_sum`` as an operator of torch: CPU kernel, Triton kernel, shapes, derivative.

torch's dropout stores a mask of what it dropped, and the sum after it is another pass. Here the
fate of a value is a function of a seed that torch's own generator draws once a forward, of the site
in the model, and of the value's place: nothing is stored, backward computes it again, and since the
seed is a tensor that the step itself draws, a recorded step drops other values at every replay and
repeats with ``torch.manual_seed``. A row's fate does not depend on the bucket that carries it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.dropout_sum import cpu
from staticgraph.kernels.register import differentiable_once, operator

_SEEDS = 2**31 - 1


def _on_cpu(
    x: Tensor, gate: Tensor | None, residual: Tensor | None, seed: Tensor, site: int, p: float
) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    out = torch.empty_like(wide)
    cpu.fill(
        wide.numpy(),
        _optional(gate, wide).numpy(),
        _optional(residual, wide).numpy(),
        int(seed),
        site,
        p,
        out.numpy(),
    )
    return out.to(x.dtype)


def _on_cuda(*arguments):
    from staticgraph.kernels.dropout_sum import gpu

    return gpu.fill(*arguments)


def _optional(value: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0, 0) if value is None else value.to(like.dtype)


_fill = operator(
    "dropout_sum(Tensor x, Tensor? gate, Tensor? residual, Tensor seed, int site, float p) "
    "-> Tensor",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=lambda x, *_: torch.empty_like(x),
)


class DropoutSum(torch.autograd.Function):
    """The derivative: the same operator over the gradient."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """``[N, F]`` as the operator gives it; only the seed is kept, and ``x`` under ReLU."""
        x, residual, seed, ctx.site, ctx.p, relu = inputs
        ctx.save_for_backward(seed, x if relu else None)
        return _fill(x, x if relu else None, residual, seed, ctx.site, ctx.p)

    @staticmethod
    @differentiable_once("dropout_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of ``x``, the same places dropped, and of the residual."""
        seed, gate = ctx.saved_tensors
        grad = grads[0].contiguous()
        dx = _fill(grad, gate, None, seed, ctx.site, ctx.p)
        return dx, grad if ctx.needs_input_grad[1] else None, *(None,) * 4


def dropout_sum(
    x: Tensor,
    residual: Tensor | None,
    seed: Tensor,
    site: int,
    *,
    p: float,
    relu: bool = False,
) -> Tensor:
    """``residual + dropout(relu(x))``.

    Args:
        x: ``[R, F]``.
        residual: ``[R, F]`` of the same dtype; None adds nothing.
        seed: ``[1]`` int64, as :func:`draw_seed` draws it.
        site: another number at every place of a model that shares the seed.
        p: the share that is dropped, from 0 up to but not 1.
        relu: apply ReLU before.

    Returns:
        ``[R, F]``, differentiable once. The same seed and site drop the same values.

    Raises:
        ValueError: ``p`` is outside ``[0, 1)``.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p={p}: the share that is dropped must be from 0 up to, but not, 1")
    residual = None if residual is None else residual.to(x.dtype).contiguous()
    return DropoutSum.apply(x.contiguous(), residual, seed, site, p, relu)


def draw_seed(device: torch.device) -> Tensor:
    """``[1]`` int64 from torch's generator of the device: one a forward."""
    return torch.randint(_SEEDS, (1,), device=device)


def kept(seed: Tensor, site: int, shape: torch.Size, p: float) -> Tensor:
    """``[R, F]`` bool: what :func:`dropout_sum` keeps on the seed's device."""
    return _fill(torch.ones(shape, device=seed.device), None, None, seed, site, p) > 0
