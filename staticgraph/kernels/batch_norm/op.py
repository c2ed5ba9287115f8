"""``batch_norm`` as a torch operator: reference, CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm import cpu
from staticgraph.kernels.cpu_loop import cast, in_loops, plain
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import common_dtype, contiguous, wide_dtype


def batch_norm_reference(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes ``batch_norm``; differentiable, on any device.

    Statistics are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.batch_norm`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    real = (torch.arange(len(x), device=x.device) < count).unsqueeze(-1)
    values = torch.where(real, x.to(wide), 0)
    rows = count.clamp(min=1).to(wide)
    mean = values.sum(0) / rows
    var = torch.where(real, values - mean, 0).square().sum(0) / rows
    centred = torch.where(real, x.to(wide) - mean, 0)
    out = centred * (var + eps).rsqrt() * weight.to(wide) + bias.to(wide)
    out = torch.where(real, out.relu() if relu else out, 0)
    out = out if residual is None else out + residual.to(wide)
    return out.to(x.dtype), mean, var


# Up to this many rows one program holds all rows of a few columns, and a norm is one launch in each
# direction.
ONE_LAUNCH_ROWS = 1024


class Running(NamedTuple):
    """Running statistics, updated in place as torch's BatchNorm does.

    The running variance is the unbiased one, and ``momentum=None`` means the cumulative average. A
    batch with fewer than two real rows changes nothing.

    Attributes:
        mean, var: ``[F]``.
        tracked: 0-dim int64, number of batches so far.
        momentum: weight of the new batch, or None.
    """

    mean: Tensor
    var: Tensor
    tracked: Tensor
    momentum: float | None


def _on_cpu(
    x: Tensor,
    addend: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    tracked: Tensor | None,
    momentum: float | None,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, dtype = x.contiguous(), in_loops(x.dtype)
    total = x.new_empty(0) if addend is None else torch.empty_like(x)
    if addend is not None and x.dtype is not dtype:
        torch.add(x, addend, out=total)  # rounded to its dtype before it is normalised
        values, addend, sums = total.to(dtype), None, None
    else:
        values, sums = cast(x, dtype), total
    mean = values.new_empty(x.size(1))
    out, var, share = (
        torch.empty_like(values),
        torch.empty_like(mean),
        -1.0 if momentum is None else momentum,
    )
    running = running_mean, running_var, tracked
    moved = [plain(running_mean, dtype), plain(running_var, dtype), plain(tracked, torch.int64)]
    read = [plain(value, dtype) for value in (addend, residual, weight, bias)]
    arrays = values, *read, count, *moved, out, mean, var, sums
    cpu.forward(arrays, dtype, (share, eps, relu))
    for statistic, value in zip(running, moved, strict=True):
        if statistic is not None and value is not statistic:
            statistic.copy_(value)
    return cast(out, common_dtype(x, residual)), mean, var, total


def _backward_on_cpu(
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
    dtype = in_loops(x.dtype)
    read = [plain(value, dtype) for value in (grad, x, weight, bias, mean, var)]
    dx, dweight, dbias = torch.empty_like(read[1]), torch.empty_like(mean), torch.empty_like(mean)
    cpu.backward((*read, count, dx, dweight, dbias), dtype, (eps, relu))
    return cast(dx, x.dtype), cast(dweight, weight.dtype), cast(dbias, bias.dtype)


def launches(x: Tensor, cumulative: bool) -> int:
    """Number of CUDA launches of a norm, per direction.

    A cumulative average reads a count that another launch updates, so its forward takes two.
    """
    return 1 if x.size(0) <= ONE_LAUNCH_ROWS and not cumulative else 2


BATCH_NORM = operator(
    "batch_norm(Tensor x, Tensor? addend, Tensor? residual, Tensor weight, Tensor bias, "
    "Tensor count, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor(c!)? tracked, "
    "float? momentum, float eps, bool relu) "
    "-> (Tensor out, Tensor mean_out, Tensor var_out, Tensor total)",
    cpu=_on_cpu,
    cuda="batch_norm.small:on_cuda",
    fake=lambda x, addend, residual, *_: results(x, addend, residual),
)
BACKWARD = operator(
    "batch_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor bias, Tensor mean_in, "
    "Tensor var_in, Tensor count, float eps, bool relu) "
    "-> (Tensor dx, Tensor dweight, Tensor dbias)",
    cpu=_backward_on_cpu,
    cuda="batch_norm.small:backward_on_cuda",
    fake=lambda grad, x, weight, bias, *_: tuple(map(torch.empty_like, (x, weight, bias))),
)


class BatchNorm(torch.autograd.Function):
    """Autograd function of ``batch_norm``; mean and variance have no gradient."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Returns the operator's ``[N, F]``, mean and variance ``[F]``, and with an addend the
        sum."""
        x, addend, residual, weight, bias, count, *running, eps, relu = inputs
        out, mean, var, total = BATCH_NORM.overload(*inputs)
        if running[0] is not None and not torch.compiler.is_compiling():
            for moved in running[:3]:
                torch.autograd.graph.increment_version(moved)
        ctx.addend = None if addend is None else addend.dtype
        ctx.residual = None if residual is None else residual.dtype
        ctx.eps, ctx.relu = eps, relu
        ctx.save_for_backward(x if addend is None else total, weight, bias, mean, var, count)
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        if addend is None:
            return out, mean, var
        # As a result, the saved sum leads a second derivative to both of its terms.
        return out, mean, var, total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of input, addend, residual, weight and bias, by torch's own
        operations if they are to be differentiated again."""
        grad, _, _, grad_sum, *_ = *grads, None
        dx = dweight = dbias = dresidual = None
        if grad is not None and torch.is_grad_enabled():
            x, weight, bias, *_, count = ctx.saved_tensors
            out, *_ = batch_norm_reference(x, None, weight, bias, count, ctx.eps, ctx.relu)
            wanted = [operand for operand in (x, weight, bias) if operand.requires_grad]
            slopes = torch.autograd.grad(out, wanted, grad.to(out.dtype), create_graph=True)
            slope_of = dict(zip(map(id, wanted), slopes, strict=True))
            dx, dweight, dbias = (slope_of.get(id(operand)) for operand in (x, weight, bias))
        elif grad is not None:
            dx, dweight, dbias = BACKWARD.overload(grad, *ctx.saved_tensors, ctx.eps, ctx.relu)
        if grad is not None and ctx.residual is not None:
            dresidual = grad.to(ctx.residual)
        if grad_sum is not None:
            dx = grad_sum if dx is None else dx + grad_sum
        daddend = None if ctx.addend is None or dx is None else dx.to(ctx.addend)
        return dx, daddend, dresidual, dweight, dbias, *(None,) * 7


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
    running: Running | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes ``residual + relu(BatchNorm(x + addend))`` over the real rows of a padded batch.

    Args:
        x: ``[R, F]``; half precisions are normalised in float32.
        weight, bias: ``[F]``.
        count: 0-dim int64; the first ``count`` rows are real, the others are ignored.
        eps: added to the variance.
        relu: apply ReLU.
        addend: ``[R, F]``, added to ``x`` before the norm; None adds nothing.
        residual: ``[R, F]``, added to the result; None adds nothing.
        running: running statistics to update in the same operator; None updates nothing.

    Returns:
        ``[R, F]`` in the promoted dtype of ``x`` and the residual, zero (or the residual) in
        padding rows, differentiable any number of times; and the mean and biased variance of the
        real rows, ``[F]`` float32 (float64 for float64), without a gradient.
    """
    moved: Any = (None,) * 4 if running is None else running
    x, addend, residual, weight, bias = contiguous(x, addend, residual, weight, bias)
    arguments = (x, addend, residual, weight, bias, count, *moved, eps, relu)
    return BatchNorm.apply(*arguments)[:3]


def results(
    x: Tensor, addend: Tensor | None, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocates rows ``[R, F]``, mean and variance ``[F]`` in the accumulation dtype, and the rows
    plus addend, which are empty without an addend."""
    mean = x.new_empty(x.size(1), dtype=wide_dtype(x))
    total = x.new_empty(0) if addend is None else torch.empty_like(x)
    return torch.empty_like(x, dtype=common_dtype(x, residual)), mean, torch.empty_like(mean), total
