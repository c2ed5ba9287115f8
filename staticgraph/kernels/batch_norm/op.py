"""``batch_norm`` as an operator of torch: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm import cpu


@torch.library.custom_op("staticgraph::batch_norm", mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor,
    addend: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = x.new_empty(0) if addend is None else x + addend
    wide = _wide(x if addend is None else total)
    out, mean = torch.empty_like(wide), wide.new_empty(x.size(1))
    var = torch.empty_like(mean)
    cpu.forward(
        wide.detach().numpy(),
        None if residual is None else residual.detach().to(wide.dtype).numpy(),
        weight.detach().to(wide.dtype).numpy(),
        bias.detach().to(wide.dtype).numpy(),
        int(count),
        eps,
        relu,
        out.numpy(),
        mean.numpy(),
        var.numpy(),
    )
    return out.to(x.dtype), mean, var, total


@torch.library.custom_op("staticgraph::batch_norm_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _wide(x)
    dx, dweight, dbias = torch.empty_like(wide), torch.empty_like(mean), torch.empty_like(mean)
    cpu.backward(
        grad.to(wide.dtype).contiguous().numpy(),
        wide.numpy(),
        weight.detach().to(wide.dtype).numpy(),
        bias.detach().to(wide.dtype).numpy(),
        mean.numpy(),
        var.numpy(),
        int(count),
        eps,
        relu,
        dx.numpy(),
        dweight.numpy(),
        dbias.numpy(),
    )
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(bias.dtype)


@_forward.register_kernel("cuda")
def _(x, addend, residual, weight, bias, count, eps, relu):
    from staticgraph.kernels.batch_norm import gpu

    return gpu.forward(x, addend, residual, weight, bias, count, eps, relu)


@_backward.register_kernel("cuda")
def _(grad, x, weight, bias, mean, var, count, eps, relu):
    from staticgraph.kernels.batch_norm import gpu

    return gpu.backward(grad, x, weight, bias, mean, var, count, eps, relu)


@_forward.register_fake
def _(x, addend, residual, weight, bias, count, eps, relu):
    wide = torch.promote_types(x.dtype, torch.float32)
    mean = x.new_empty(x.size(1), dtype=wide)
    total = x.new_empty(0) if addend is None else torch.empty_like(x)
    return torch.empty_like(x), mean, torch.empty_like(mean), total


@_backward.register_fake
def _(grad, x, weight, bias, *_):
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)


def _setup(ctx, inputs, output):
    x, addend, residual, weight, bias, count, ctx.eps, ctx.relu = inputs
    _, mean, var, total = output
    ctx.addend = None if addend is None else addend.dtype
    ctx.residual = None if residual is None else residual.dtype
    ctx.save_for_backward(x if addend is None else total, weight, bias, mean, var, count)
    ctx.mark_non_differentiable(mean, var, total)
    ctx.set_materialize_grads(False)


def _derivative(ctx, grad, *_):
    if grad is None:
        return (None,) * 8
    dx, dweight, dbias = _backward(grad, *ctx.saved_tensors, ctx.eps, ctx.relu)
    daddend = None if ctx.addend is None else dx.to(ctx.addend)
    dresidual = None if ctx.residual is None else grad.to(ctx.residual)
    return dx, daddend, dresidual, dweight, dbias, None, None, None


_forward.register_autograd(_derivative, setup_context=_setup)


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    *,
    eps: float,
    relu: bool = False,
    addend: Tensor | None = None,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``residual + relu(BatchNorm(x + addend))`` over the real rows of a padded batch.

    Args:
        x: ``[R, F]``; half precisions are normalised in float32.
        weight, bias: ``[F]``.
        count: 0-dim int64; the first ``count`` rows are real, the others take no part.
        eps: added to the variance.
        relu: apply ReLU.
        addend: ``[R, F]``, added before; None adds nothing.
        residual: ``[R, F]``, added at the end; None adds nothing.

    Returns:
        ``[R, F]``, zero (or the residual) on padding rows, differentiable once; mean and biased
        variance of the real rows, ``[F]`` float32 (float64 for float64), without a gradient.
    """
    out, mean, var, _ = _forward(
        x.contiguous(),
        None if addend is None else addend.to(x.dtype).contiguous(),
        None if residual is None else residual.contiguous(),
        weight,
        bias,
        count,
        eps,
        relu,
    )
    return out, mean, var


def _wide(value: Tensor) -> Any:
    return value if value.dtype == torch.float64 else value.float()


@torch.library.custom_op(
    "staticgraph::update_running",
    mutates_args=("running_mean", "running_var", "tracked"),
    device_types="cpu",
)
def _update(
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    tracked: Tensor,
    momentum: float | None,
) -> None:
    rows = int(count)
    if not rows:
        return
    tracked.add_(1)
    factor = 1 / int(tracked) if momentum is None else momentum
    running_mean.lerp_(mean.to(running_mean.dtype), factor)
    unbiased = var * (rows / max(rows - 1, 1))
    running_var.lerp_(unbiased.to(running_var.dtype), factor)


@_update.register_kernel("cuda")
def _(mean, var, count, running_mean, running_var, tracked, momentum):
    from staticgraph.kernels.batch_norm import gpu

    gpu.update_running(mean, var, count, running_mean, running_var, tracked, momentum)


@_update.register_fake
def _(mean, var, count, running_mean, running_var, tracked, momentum):
    return None


def update_running(
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    tracked: Tensor,
    momentum: float | None,
) -> None:
    """Moves running statistics as torch's BatchNorm does, in place: the unbiased variance, and the
    cumulative average where ``momentum`` is None. A batch of padding alone changes nothing.

    Args:
        mean, var: ``[F]``, as :func:`batch_norm` gives them.
        count: 0-dim int64, rows that they were taken over.
        running_mean, running_var: ``[F]``.
        tracked: 0-dim int64, batches so far.
        momentum: share of the new batch.
    """
    _update(mean, var, count, running_mean, running_var, tracked, momentum)
