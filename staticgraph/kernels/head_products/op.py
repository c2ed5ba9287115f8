"""``head_products`` as a torch operator on a CPU: kernel, shapes, derivative.

GAT's score is the sum of one number per node at each end, the dot product of the node's row of a
head with that head's vector. A batched matrix product computes them in one call, and does so here
on CUDA; on a CPU it first copies all rows head by head, and back again in backward, for two
columns.

Source: Velickovic et al. 2018, arXiv 1710.10903, equation 3, whose vector is split in two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.head_products import cpu
from staticgraph.kernels.head_products.reference import head_products_reference
from staticgraph.kernels.register import operator
from staticgraph.text.how_many import how_many


def _on_cpu(rows: Tensor, weight: Tensor) -> Tensor:
    dtype = torch.promote_types(rows.dtype, weight.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    count, heads, _ = weight.shape
    out = torch.empty(heads, len(rows), count, dtype=wide)
    cpu.forward(rows.detach().to(wide).numpy(), weight.detach().to(wide).numpy(), out.numpy())
    return out.to(dtype)


def _backward_on_cpu(grad: Tensor, rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(grad.dtype, torch.float32)
    _, heads, columns = weight.shape
    drows, dweight = torch.empty(rows.shape, dtype=wide), torch.zeros(weight.shape, dtype=wide)
    cpu.backward(
        grad.to(wide).numpy(),
        rows.to(wide).view(-1, heads, columns).numpy(),
        weight.to(wide).numpy(),
        drows.view(-1, heads, columns).numpy(),
        dweight.numpy(),
    )
    return drows.to(rows.dtype), dweight.to(weight.dtype)


def _fake(rows: Tensor, weight: Tensor) -> Tensor:
    dtype = torch.promote_types(rows.dtype, weight.dtype)
    return rows.new_empty(weight.size(1), rows.size(0), weight.size(0), dtype=dtype)


def _fake_backward(grad: Tensor, rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rows), torch.empty_like(weight)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _derivative(ctx, grad):
    return _backward(grad.contiguous(), *ctx.saved_tensors)


_backward = operator(
    "head_products_backward(Tensor grad, Tensor rows, Tensor weight) -> (Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=None,
    fake=_fake_backward,
)
_forward = operator(
    "head_products(Tensor rows, Tensor weight) -> Tensor",
    cpu=_on_cpu,
    cuda=None,
    fake=_fake,
    derivative=_derivative,
    setup=_setup,
)


def head_products(rows: Tensor, weight: Tensor) -> Tensor:
    """Computes ``out[h, i, k] = rows[i, h] . weight[k, h]``.

    Args:
        rows: ``[N, H * C]``, the columns of a head side by side.
        weight: ``[K, H, C]``, one vector per head for each of the ``K`` results.

    Returns:
        ``[H, N, K]`` in the promoted dtype; half precisions are accumulated in float32.
        Differentiable once in both. Bitwise deterministic.

    Raises:
        ValueError: the columns of ``rows`` do not match those of ``weight``.
    """
    if rows.size(1) != weight.size(1) * weight.size(2):
        raise ValueError(
            f"rows of {how_many(rows.size(1), 'column')} and vectors of {weight.size(1)} x "
            f"{weight.size(2)}: a row has the columns of all heads, side by side"
        )
    if not rows.is_cpu:
        return head_products_reference(rows, weight)
    return _forward(rows.contiguous(), weight.contiguous())
