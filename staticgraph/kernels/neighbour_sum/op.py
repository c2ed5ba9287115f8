"""``neighbour_sum`` as an operator of torch: CPU kernel, Triton kernel, shapes, derivative.

What is read here is often read again: by the next layer's sum (the edges' table), by a residual
(the nodes). Autograd would add their gradients up, an operation each time. So the operator hands
its operands on, and whatever gradient comes back through them is where its own sums begin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.kernels.neighbour_sum import cpu
from staticgraph.kernels.neighbour_sum.reference import TRANSFORMS
from staticgraph.kernels.register import operator


class Summed(NamedTuple):
    """A sum over neighbours, and its operands for whoever reads them next.

    Attributes:
        out: ``[N, F]``.
        x: the nodes that were given.
        edge: the edge operand that was given, or None.
    """

    out: Tensor
    x: Tensor
    edge: Tensor | None


def _on_cpu(
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
        _codes(code, src).numpy(),
        src.numpy(),
        row_ptr.numpy(),
        0.0 if self_eps is None else 1.0 + float(self_eps),
        mean,
        out.numpy(),
    )
    return out.to(dtype)


def _backward_on_cpu(
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
    into_x: Tensor | None,
    into_edge: Tensor | None,
    transform: str,
    mean: bool,
) -> tuple[Tensor, Tensor]:
    dtype, grad, x, edge = x.dtype, _wide(grad), _wide(x), _wide(edge)
    dx, dedge = torch.empty_like(x), _gradient_like(edge, x)
    if code is not None and not len(code):
        dedge.zero_()  # a table that no edge reads
    rows = _rows(edge, x)
    cpu.BACKWARD[transform](
        grad.contiguous().numpy(),
        x.numpy(),
        rows.numpy(),
        _codes(code, src).numpy(),
        dst.numpy(),
        row_ptr.numpy(),
        col_ptr.numpy(),
        transpose.numpy(),
        _rows(_wide(into_x), x).numpy(),
        _rows(_wide(into_edge), x).numpy(),
        0.0 if self_eps is None else 1.0 + float(self_eps),
        mean,
        dx.numpy(),
        dedge.view(rows.shape).numpy(),
    )
    return dx.to(dtype), dedge.to(dtype)


def _on_cuda(x, edge, code, src, dst, row_ptr, col_ptr, transpose, self_eps, transform, mean):
    from staticgraph.kernels.neighbour_sum import gpu

    return gpu.forward(x, edge, code, src, row_ptr, self_eps, transform, mean)


def _backward_on_cuda(grad, x, edge, code, src, *rest):
    from staticgraph.kernels.neighbour_sum import gpu

    return gpu.backward(grad, x, edge, code, *rest)


_OPERANDS = (
    "Tensor x, Tensor? edge, Tensor? code, Tensor src, Tensor dst, Tensor row_ptr, "
    "Tensor col_ptr, Tensor transpose, Tensor? self_eps"
)
_forward = operator(
    f"neighbour_sum({_OPERANDS}, str transform, bool mean) -> Tensor",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=lambda x, *_: torch.empty_like(x),
)
_backward = operator(
    f"neighbour_sum_backward(Tensor grad, {_OPERANDS}, Tensor? into_x, Tensor? into_edge, "
    "str transform, bool mean) -> (Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=lambda grad, x, edge, *_: (torch.empty_like(x), _gradient_like(edge, x)),
)


class NeighbourSum(torch.autograd.Function):
    """The derivative; ``handed`` tells which operands are handed on: "", "x", "xe"."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        *tensors, transform, mean, handed = inputs
        ctx.save_for_backward(*tensors)
        ctx.transform, ctx.mean, ctx.handed = transform, mean, handed
        out = _forward(*tensors, transform, mean)
        if not handed:
            return out
        x, edge = tensors[:2]
        if handed == "x":
            return out, x.view_as(x)
        return out, x.view_as(x), edge.view_as(edge)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        into_x = grads[1] if ctx.handed else None
        into_edge = grads[2] if ctx.handed == "xe" else None
        dx, dedge = _backward(
            grads[0], *ctx.saved_tensors, into_x, into_edge, ctx.transform, ctx.mean
        )
        return (dx, dedge if ctx.needs_input_grad[1] else None, *(None,) * 10)


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
            :class:`staticgraph.batches.slots.SlotLayout` describes them.
        code: ``[E]`` int64; edge ``e`` then reads row ``code[e]`` of ``edge [V, F]``.
        self_eps: 0-dim or ``[1]``, GIN's epsilon, without a gradient; None leaves ``x[i]`` out.
        transform: ``copy`` (GIN, SAGE), ``multiply`` (GCN) or ``relu_add`` (GINE).
        mean: divide the sum by the number of edges into ``i``, at least 1.

    Returns:
        ``[N, F]``, differentiable once in ``x`` and ``edge``. The same bits every time.

    Raises:
        ValueError: an unknown transform, or an edge operand where none, or one, is needed.
    """
    x, edge = _checked(x, edge, transform)
    pointers = (src, dst, row_ptr, col_ptr, transpose)
    return NeighbourSum.apply(x, edge, code, *pointers, self_eps, transform, mean, "")


def neighbour_sum_handed_on(
    x: Tensor,
    edge: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    *,
    edge_too: bool = False,
    code: Tensor | None = None,
    self_eps: Tensor | None = None,
    transform: str = "copy",
    mean: bool = False,
) -> Summed:
    """:func:`neighbour_sum`, and its operands to be read from now on instead of those given.

    Args:
        edge_too: hand on the edge operand as well; only where something reads it, since an operand
            that nothing reads brings back a gradient of zeros, an operation more.
    """
    x, edge = _checked(x, edge, transform)
    handed = "xe" if edge_too and edge is not None else "x"
    pointers = (src, dst, row_ptr, col_ptr, transpose)
    results = NeighbourSum.apply(x, edge, code, *pointers, self_eps, transform, mean, handed)
    return Summed(results[0], results[1], results[2] if handed == "xe" else edge)


def _checked(x: Tensor, edge: Tensor | None, transform: str) -> tuple[Tensor, Tensor | None]:
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
    return x.contiguous(), edge


def _wide(value: Tensor | None) -> Any:
    """Half precisions as float32, in which they are added up."""
    if value is None or value.dtype in (torch.float32, torch.float64):
        return value
    return value.float()


def _rows(value: Tensor | None, x: Tensor) -> Tensor:
    """An operand as ``[V, F]`` or ``[V, 1]``; something empty where there is none."""
    if value is None:
        return x.new_empty(0, 0)
    value = value.contiguous()
    return value.unsqueeze(1) if value.dim() == 1 else value


def _codes(code: Tensor | None, src: Tensor) -> Tensor:
    return src.new_empty(0) if code is None else code


def _gradient_like(edge: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(0) if edge is None else torch.empty_like(edge)
