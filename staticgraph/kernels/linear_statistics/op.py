"""``linear_statistics`` as a torch operator: the reference on a CPU, Triton on CUDA.

Its derivative is that of the linear layer. Statistics have no gradient: the norm that reads them
differentiates with respect to the rows that they describe.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm.partials import partials_of
from staticgraph.kernels.linear.op import Linear
from staticgraph.kernels.linear_statistics.reference import linear_statistics_reference
from staticgraph.kernels.register import operator


def _fake(x, weight, bias, count, relu, dtype):
    wide = torch.promote_types(dtype, torch.float32)
    columns = weight.size(0)
    out = x.new_empty(x.size(0), columns, dtype=dtype)
    return out, x.new_empty(partials_of(x.size(0)), 2, columns, dtype=wide)


_forward = operator(
    "linear_statistics(Tensor x, Tensor weight, Tensor? bias, Tensor count, bool relu, "
    "ScalarType dtype) -> (Tensor, Tensor)",
    cpu=linear_statistics_reference,
    cuda="linear_statistics.gpu:forward",
    fake=_fake,
).overload


class LinearStatistics(torch.autograd.Function):
    """Autograd function of ``linear_statistics``, with the linear layer's derivative."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Returns the operator's ``[N, out]`` and partial statistics, and ``x`` if it is handed
        on."""
        x, weight, bias, count, relu, dtype, handed_on = inputs
        out, partial = _forward(x, weight, bias, count, relu, dtype)
        ctx.save_for_backward(x, weight, out if relu else None)
        ctx.handed_on = handed_on
        ctx.mark_non_differentiable(partial)
        ctx.set_materialize_grads(False)
        return (out, partial, x.view_as(x)) if handed_on else (out, partial)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of the linear layer; statistics have none."""
        into = grads[2] if ctx.handed_on else None
        if grads[0] is None:
            return into, *(None,) * 6
        dx, dweight, dbias, *_ = Linear.backward(ctx, grads[0], into)
        return dx, dweight, dbias, *(None,) * 4


def linear_statistics(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: Tensor,
    *,
    relu: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes :func:`staticgraph.kernels.linear`, and the statistics of its result per tile of
    rows.

    Args:
        x: ``[R, I]``.
        weight: ``[O, I]``.
        bias: ``[O]``, in the dtype of ``weight``.
        count: 0-dim int64; the first ``count`` rows are real, the others are left out of the
            statistics.
        relu: apply ReLU in the same pass; statistics are of the values after it.
        dtype: dtype of the result, to which operands are rounded before they are multiplied; None
            for that of ``x``. Sums are float32.

    Returns:
        ``[R, O]``, differentiable once, and ``[tiles, 2, O]`` float32 (float64 for float64) without
        a gradient: mean and sum of squared deviations of the real rows of each tile, of the rounded
        values, for ``batch_norm(partial=...)``. Bitwise deterministic.
    """
    return LinearStatistics.apply(
        x.contiguous(), weight, bias, count, relu, dtype or x.dtype, False
    )


def linear_statistics_handed_on(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: Tensor,
    *,
    relu: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns :func:`linear_statistics`, and ``x`` for its next reader.

    See :func:`staticgraph.kernels.linear.linear_handed_on`.
    """
    return LinearStatistics.apply(x.contiguous(), weight, bias, count, relu, dtype or x.dtype, True)
