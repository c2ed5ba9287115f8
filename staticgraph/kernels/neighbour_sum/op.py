"""``neighbour_sum`` as an operator of torch: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.neighbour_sum import cpu
from staticgraph.kernels.neighbour_sum.reference import TRANSFORMS


@torch.library.custom_op("staticgraph::neighbour_sum", mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    self_eps: Tensor | None,
    transform: str,
    mean: bool,
) -> Tensor:
    dtype, x, edge = x.dtype, _wide(x), _wide(edge)
    out = torch.empty_like(x)
    cpu.FORWARD[transform](
        x.numpy(),
        _rows(edge, x).numpy(),
        _codes(code).numpy(),
        src.numpy(),
        row_ptr.numpy(),
        0.0 if self_eps is None else 1.0 + float(self_eps),
        mean,
        out.numpy(),
    )
    return out.to(dtype)


@torch.library.custom_op("staticgraph::neighbour_sum_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    self_eps: Tensor | None,
    transform: str,
    mean: bool,
) -> tuple[Tensor, Tensor]:
    dtype, grad, x, edge = x.dtype, _wide(grad), _wide(x), _wide(edge)
    dx, dedge = torch.empty_like(x), _gradient_like(edge, x, zero=code is not None)
    rows = _rows(edge, x)
    cpu.BACKWARD[transform](
        grad.contiguous().numpy(),
        x.numpy(),
        rows.numpy(),
        _codes(code).numpy(),
        dst.numpy(),
        row_ptr.numpy(),
        col_ptr.numpy(),
        transpose.numpy(),
        0.0 if self_eps is None else 1.0 + float(self_eps),
        mean,
        dx.numpy(),
        dedge.view(rows.shape).numpy(),
    )
    return dx.to(dtype), dedge.to(dtype)


@_forward.register_kernel("cuda")
def _(x, edge, code, src, dst, row_ptr, col_ptr, transpose, self_eps, transform, mean):
    from staticgraph.kernels.neighbour_sum import gpu

    return gpu.forward(x, edge, code, src, row_ptr, self_eps, transform, mean)


@_backward.register_kernel("cuda")
def _(grad, x, edge, code, src, dst, row_ptr, col_ptr, transpose, self_eps, transform, mean):
    from staticgraph.kernels.neighbour_sum import gpu

    return gpu.backward(
        grad, x, edge, code, dst, row_ptr, col_ptr, transpose, self_eps, transform, mean
    )


@_forward.register_fake
def _(x, *_):
    return torch.empty_like(x)


@_backward.register_fake
def _(grad, x, edge, *_):
    return torch.empty_like(x), _gradient_like(edge, x, zero=False)


def _setup(ctx, inputs, output):
    *tensors, ctx.transform, ctx.mean = inputs
    ctx.save_for_backward(*tensors)


def _derivative(ctx, grad):
    dx, dedge = _backward(grad, *ctx.saved_tensors, ctx.transform, ctx.mean)
    return (dx, dedge if ctx.needs_input_grad[1] else None, *(None,) * 9)


_forward.register_autograd(_derivative, setup_context=_setup)


def neighbour_sum(
    x: Tensor,
    edge: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    *,
    code: Tensor | None = None,
    self_eps: Tensor | None = None,
    transform: str = "copy",
    mean: bool = False,
) -> Tensor:
    """``out[i] = (1 + self_eps) x[i] + sum over edges e into i of transform(x[src[e]], edge[e])``.

    Args:
        x: ``[N, F]`` float32, float64, or bfloat16 and float16, which are added up in float32.
        edge: ``[E, F]``, or ``[E]`` with ``transform="multiply"``; None with ``"copy"``.
        src, dst: ``[E]`` int64, both ends of the edges, sorted by ``dst``.
        row_ptr, col_ptr, transpose: ``[N + 1]``, ``[N + 1]``, ``[E]`` int32, as
            :class:`staticgraph.slots.SlotLayout` describes them.
        code: ``[E]`` int64; edge ``e`` then reads row ``code[e]`` of ``edge [V, F]``.
        self_eps: 0-dim or ``[1]``, GIN's epsilon, without a gradient; None leaves ``x[i]`` out.
        transform: ``copy`` (GIN, SAGE), ``multiply`` (GCN) or ``relu_add`` (GINE).
        mean: divide the sum by the number of edges into ``i``, at least 1.

    Returns:
        ``[N, F]``, differentiable once in ``x`` and ``edge``. The same bits every time.

    Raises:
        ValueError: an unknown transform, or an edge operand where none, or one, is needed.
    """
    if transform not in TRANSFORMS:
        raise ValueError(f"transform={transform!r}; choose one of {', '.join(TRANSFORMS)}")
    if (edge is None) != (transform == "copy"):
        raise ValueError(
            f"transform={transform!r} {'takes no' if transform == 'copy' else 'needs an'} edge "
            "operand: 'copy' reads the node alone, 'multiply' and 'relu_add' node and edge"
        )
    if edge is not None:
        if x.dtype != edge.dtype:
            common = torch.promote_types(x.dtype, edge.dtype)
            x, edge = x.to(common), edge.to(common)
        edge = edge.contiguous()
    return _forward(
        x.contiguous(),
        edge,
        code,
        src,
        dst,
        row_ptr,
        col_ptr,
        transpose,
        self_eps,
        transform,
        mean,
    )


def _wide(value: Tensor | None) -> Any:
    """Half precisions as float32, in which they are added up."""
    if value is None or value.dtype in (torch.float32, torch.float64):
        return value
    return value.float()


def _rows(edge: Tensor | None, x: Tensor) -> Tensor:
    """The edge operand as ``[V, F]`` or ``[V, 1]``; something empty where there is none."""
    if edge is None:
        return x.new_empty(0, 0)
    edge = edge.detach()
    return edge.unsqueeze(1) if edge.dim() == 1 else edge


def _codes(code: Tensor | None) -> Tensor:
    return torch.empty(0, dtype=torch.int64) if code is None else code


def _gradient_like(edge: Tensor | None, x: Tensor, zero: bool) -> Tensor:
    if edge is None:
        return x.new_empty(0)
    return torch.zeros_like(edge) if zero else torch.empty_like(edge)
