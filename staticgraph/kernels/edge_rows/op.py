"""``edge_rows`` as a torch operator: CPU kernel, CUDA kernels for backward, shapes, derivative.

A message that no other operator covers begins with the rows of both ends, ``x[dst]`` and
``x[src]``, and its backward ends with two scatters of all edges by index, which torch adds row by
row. The edges of a batch are sorted, so each is a single pass here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.edge_rows import cpu
from staticgraph.kernels.message import codes_of, some_of
from staticgraph.kernels.register import asked_of, differentiable_once, operator


def _on_cpu(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
) -> Tensor:
    some = some_of(source, target, edge)
    wide = torch.promote_types(some.dtype, torch.float32)
    out = torch.empty(len(src), some.size(1), dtype=wide)
    cpu.forward(
        _array(source, wide),
        _array(target, wide),
        _array(edge, wide),
        codes_of(code),
        src.numpy(),
        dst.numpy(),
        out.numpy(),
    )
    return out.to(some.dtype)


def _backward_on_cpu(
    grad: Tensor,
    code: Tensor | None,
    src: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    entries: int,
    source: bool,
    target: bool,
    edge: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    wide, width = torch.promote_types(grad.dtype, torch.float32), grad.size(1)
    nodes = len(row_ptr) - 1
    dsource = torch.zeros(nodes if source else 0, width, dtype=wide)
    dtarget = torch.empty(nodes if target else 0, width, dtype=wide)
    coded = edge and code is not None
    dedge = torch.zeros(entries if coded else 0, width, dtype=wide)
    given = grad.to(wide).numpy(), codes_of(code), src.numpy(), row_ptr.numpy()
    cpu.backward(*given, dsource.numpy(), dtarget.numpy(), dedge.numpy())
    return dsource.to(grad.dtype), dtarget.to(grad.dtype), dedge.to(grad.dtype)


def _on_cuda(*operands):
    from staticgraph.kernels.edge_rows import gpu

    return gpu.forward(*operands)


def _backward_on_cuda(grad, code, src, row_ptr, col_ptr, transpose, entries, source, target, edge):
    from staticgraph.kernels.edge_rows import gpu

    wants = source, target, edge
    return gpu.backward(grad, code, row_ptr, col_ptr, transpose, entries, wants)


def _fake(source, target, edge, code, src, dst):
    some = some_of(source, target, edge)
    return some.new_empty(src.size(0), some.size(1))


def _fake_backward(grad, code, src, row_ptr, col_ptr, transpose, entries, source, target, edge):
    nodes, width = row_ptr.size(0) - 1, grad.size(1)
    coded = edge and code is not None
    return (
        grad.new_empty(nodes if source else 0, width),
        grad.new_empty(nodes if target else 0, width),
        grad.new_empty(entries if coded else 0, width),
    )


sums_of_ends: Callable[..., tuple[Tensor, Tensor, Tensor]] = operator(
    "edge_rows_backward(Tensor grad, Tensor? code, Tensor src, Tensor row_ptr, Tensor col_ptr, "
    "Tensor transpose, SymInt entries, bool source, bool target, bool edge) "
    "-> (Tensor, Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=_fake_backward,
)
rows_of_ends: Callable[..., Tensor] = operator(
    "edge_rows(Tensor? source, Tensor? target, Tensor? edge, Tensor? code, Tensor src, Tensor dst) "
    "-> Tensor",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=_fake,
)


class EdgeRows(torch.autograd.Function):
    """Autograd function of ``edge_rows``; backward sums by row pointer."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the operator's ``[E, F]``."""
        source, target, edge, code, src, dst, *pointers = inputs
        ctx.save_for_backward(code, src, *pointers)
        ctx.entries = 0 if edge is None else edge.size(0)
        return rows_of_ends(source, target, edge, code, src, dst)

    @staticmethod
    @differentiable_once("edge_rows")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of source, target and edge that are needed."""
        code, *where = ctx.saved_tensors
        grad, wants = grads[0].contiguous(), ctx.needs_input_grad[:3]
        by_edge = grad if wants[2] and code is None else None
        by_source = by_target = None
        if wants[0] or wants[1] or (wants[2] and code is not None):
            by_source, by_target, by_code = sums_of_ends(grad, code, *where, ctx.entries, *wants)
            by_edge = by_code if by_edge is None else by_edge
        return *asked_of(ctx, (by_source, by_target, by_edge)), *(None,) * 6


def edge_rows(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    *,
    code: Tensor | None = None,
) -> Tensor:
    """Computes ``out[e] = source[src[e]] + target[dst[e]] + edge[e]``, of the operands that are
    given.

    Args:
        source, target: ``[N, F]``, or None for nothing.
        edge: ``[E, F]``, or None for nothing. At least one of the three is required.
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.
        code: ``[E]`` int64; edge ``e`` then reads row ``code[e]`` of ``edge [V, F]``.

    Returns:
        ``[E, F]`` in the dtype of the operands; half precisions are accumulated in float32.
        Differentiable once. Bitwise deterministic.

    Raises:
        ValueError: no operand is given.
    """
    if source is None and target is None and edge is None:
        raise ValueError("rows of nothing: give source, target or edge")
    given = (None if one is None else one.contiguous() for one in (source, target, edge))
    return EdgeRows.apply(*given, code, src, dst, row_ptr, col_ptr, transpose)


def _array(value: Tensor | None, wide: torch.dtype) -> Any:
    """Returns the tensor as a NumPy array; an empty one for None."""
    if value is None:
        return torch.empty(0, 0, dtype=wide).numpy()
    return value.detach().to(wide).numpy()
