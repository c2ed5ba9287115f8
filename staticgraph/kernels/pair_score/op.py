"""``pair_score`` as a torch operator: CPU kernel, Triton kernel, shapes, derivative.

GATv2 applies the nonlinearity between the sum of two rows and the product with the attention
vector, so a score is no longer the sum of one number per node, and stock code allocates four arrays
of ``[E, H * C]`` for it. Here a score is computed in registers, and recomputed in backward.

Source: Brody, Alon and Yahav 2022, arXiv 2105.14491.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.pair_score import cpu
from staticgraph.kernels.register import operator


def pair_score_reference(
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    edge: Tensor | None,
    own: Tensor | None,
    src: Tensor,
    dst: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """Computes ``pair_score``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.pair_score`;
    edges in any order.
    """
    wide = torch.promote_types(left.dtype, torch.float32)
    heads, width = weight.shape

    def score(rows: Tensor) -> Tensor:
        """Reduces ``[n, H * C]`` to ``[n, H]``, in the dtype of the operands."""
        active = F.leaky_relu(rows, slope).view(-1, heads, width)
        return (active * weight.to(wide)).sum(-1).to(left.dtype)

    left, right = left.to(wide), right.to(wide)
    rows, loops = left[src] + right[dst], left + right
    rows = rows if edge is None else rows + edge.to(wide)
    return score(rows), score(loops if own is None else loops + own.to(wide))


def _on_cpu(
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    edge: Tensor | None,
    own: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:
    wide, heads = torch.promote_types(left.dtype, torch.float32), len(weight)
    score = torch.empty(len(src), heads, dtype=wide)
    loop = torch.empty(len(left), heads, dtype=wide)
    cpu.forward(
        _rows(left, wide, heads),
        _rows(right, wide, heads),
        weight.detach().to(wide).numpy(),
        _rows(edge, wide, heads),
        _rows(own, wide, heads),
        src.numpy(),
        row_ptr.numpy(),
        slope,
        score.numpy(),
        loop.numpy(),
    )
    return score.to(left.dtype), loop.to(left.dtype)


def _backward_on_cpu(
    grad: Tensor,
    grad_loop: Tensor,
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    edge: Tensor | None,
    own: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    wide, heads = torch.promote_types(left.dtype, torch.float32), len(weight)
    dleft, dright, dweight = (
        torch.zeros(value.shape, dtype=wide) for value in (left, right, weight)
    )
    dedge, down = (
        torch.empty((0,) if value is None else value.shape, dtype=wide) for value in (edge, own)
    )
    cpu.backward(
        grad.to(wide).numpy(),
        grad_loop.to(wide).numpy(),
        _rows(left, wide, heads),
        _rows(right, wide, heads),
        weight.to(wide).numpy(),
        _rows(edge, wide, heads),
        _rows(own, wide, heads),
        src.numpy(),
        row_ptr.numpy(),
        slope,
        _rows(dleft, wide, heads),
        _rows(dright, wide, heads),
        dweight.numpy(),
        _rows(None if edge is None else dedge, wide, heads),
        _rows(None if own is None else down, wide, heads),
    )
    dtype = left.dtype
    return (
        dleft.to(dtype),
        dright.to(dtype),
        dweight.to(weight.dtype),
        dedge.to(dtype),
        down.to(dtype),
    )


def _on_cuda(left, right, weight, edge, own, src, dst, row_ptr, col_ptr, transpose, slope):
    from staticgraph.kernels.pair_score import gpu

    return gpu.forward(left, right, weight, edge, own, src, row_ptr, slope)


def _backward_on_cuda(*args):
    from staticgraph.kernels.pair_score import gpu

    return gpu.backward(*args)


def _fake(left, right, weight, edge, own, src, *_):
    heads = weight.size(0)
    return left.new_empty(src.size(0), heads), left.new_empty(left.size(0), heads)


def _fake_backward(grad, grad_loop, left, right, weight, edge, own, *_):
    return (
        torch.empty_like(left),
        torch.empty_like(right),
        torch.empty_like(weight),
        left.new_empty(0) if edge is None else torch.empty_like(edge),
        left.new_empty(0) if own is None else torch.empty_like(own),
    )


def _setup(ctx, inputs, output):
    *tensors, ctx.slope = inputs
    ctx.save_for_backward(*tensors)


def _derivative(ctx, grad, grad_loop):
    dleft, dright, dweight, dedge, down = _backward(
        grad.contiguous(), grad_loop.contiguous(), *ctx.saved_tensors, ctx.slope
    )
    return (
        dleft,
        dright,
        dweight,
        dedge if ctx.needs_input_grad[3] else None,
        down if ctx.needs_input_grad[4] else None,
        *(None,) * 6,
    )


_backward = operator(
    "pair_score_backward(Tensor grad, Tensor grad_loop, Tensor left, Tensor right, "
    "Tensor weight, Tensor? edge, Tensor? own, Tensor src, Tensor dst, Tensor row_ptr, "
    "Tensor col_ptr, Tensor transpose, float slope) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=_fake_backward,
)
_forward = operator(
    "pair_score(Tensor left, Tensor right, Tensor weight, Tensor? edge, Tensor? own, Tensor src, "
    "Tensor dst, Tensor row_ptr, Tensor col_ptr, Tensor transpose, float slope) "
    "-> (Tensor, Tensor)",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=_fake,
    derivative=_derivative,
    setup=_setup,
)


def pair_score(
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    *,
    edge: Tensor | None = None,
    own: Tensor | None = None,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """Computes ``weight[h] . leaky_relu(left[src] + right[dst] + edge)`` for every edge and head.

    Args:
        left, right: ``[N, H * C]``, a node's row as a source and as a destination; half precisions
            are accumulated in float32.
        weight: ``[H, C]``.
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.
        edge: ``[E, H * C]``, or None for nothing.
        own: ``[N, H * C]``, replaces ``edge`` for a node's self-loop; None for nothing.
        slope: of the leaky ReLU below zero.

    Returns:
        ``[E, H]`` for the edges and ``[N, H]`` for the self-loops, in the promoted dtype of the
        rows; differentiable once in ``left``, ``right``, ``weight``, ``edge`` and ``own``. Bitwise
        deterministic.
    """
    dtype = torch.promote_types(left.dtype, right.dtype)
    for value in (edge, own):
        dtype = dtype if value is None else torch.promote_types(dtype, value.dtype)
    return _forward(
        left.to(dtype).contiguous(),
        right.to(dtype).contiguous(),
        weight.contiguous(),
        *(None if value is None else value.to(dtype).contiguous() for value in (edge, own)),
        src,
        dst,
        row_ptr,
        col_ptr,
        transpose,
        slope,
    )


def _rows(value: Tensor | None, dtype: torch.dtype, heads: int) -> Any:
    """Returns ``[R, H, C]`` as a NumPy array in the accumulation dtype; an empty one for None."""
    if value is None:
        return torch.empty((0, 0, 0), dtype=dtype).numpy()
    return value.detach().to(dtype).view(len(value), heads, value.size(1) // heads).numpy()
