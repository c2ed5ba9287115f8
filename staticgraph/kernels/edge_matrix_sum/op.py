"""``edge_matrix_sum`` as a torch operator: CPU kernel, shapes, derivative.

A message-passing network with one matrix per edge multiplies each neighbour's row by its edge's
matrix: one small product per edge, and each further call of the same layer allocates another
gradient as large as all matrices. Here a matrix is read while its message is summed, and if the
matrices are handed on, the operator itself accumulates the gradients of all calls. There is no CUDA
kernel.

Source: Gilmer et al. 2017, arXiv 1704.01212.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.addresses import LIKE, addresses, cast, in_kernels, plain
from staticgraph.kernels.edge_matrix_sum import cpu
from staticgraph.kernels.register import asked_of, differentiable_once, operator
from staticgraph.kernels.threads import threads_for


def edge_matrix_sum_reference(
    x: Tensor, matrices: Tensor, src: Tensor, dst: Tensor, mean: bool
) -> Tensor:
    """Computes ``edge_matrix_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.edge_matrix_sum`; edges in any order.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = torch.einsum("ek,eko->eo", x.to(wide).index_select(0, src), matrices.to(wide))
    out = rows.new_zeros(len(x), rows.size(1)).index_add(0, dst, rows)
    if mean:
        degree = rows.new_zeros(len(x)).index_add(0, dst, torch.ones_like(dst, dtype=wide))
        out = out / degree.clamp(min=1).unsqueeze(-1)
    return out.to(x.dtype)


def _on_cpu(
    x: Tensor,
    matrices: Tensor,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    mean: bool,
) -> Tensor:
    wide = in_kernels(x.dtype)
    read = plain(x, wide), plain(matrices, wide), plain(src, torch.int64)
    row_ptr = plain(row_ptr, torch.int32)
    out = torch.empty(len(x), matrices.size(2), dtype=wide)
    cpu.forward(
        LIKE[wide],
        addresses(*read, row_ptr, out),
        (len(x), *matrices.shape),
        mean,
        threads_for(matrices.numel()),
    )
    return cast(out, x.dtype)


def _backward_on_cpu(
    grad: Tensor,
    x: Tensor,
    matrices: Tensor,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    into: Tensor | None,
    mean: bool,
) -> tuple[Tensor, Tensor]:
    wide = in_kernels(x.dtype)
    read = plain(grad, wide), plain(x, wide), plain(matrices, wide), plain(src, torch.int64)
    pointers = [plain(one, torch.int32) for one in (row_ptr, col_ptr, transpose)]
    into = plain(into, wide)
    dx, dmatrices = torch.empty(x.shape, dtype=wide), torch.empty(matrices.shape, dtype=wide)
    cpu.backward(
        LIKE[wide],
        addresses(*read, *pointers, into, dx, dmatrices),
        (len(x), *matrices.shape),
        into is not None,
        mean,
        threads_for(matrices.numel()),
    )
    return cast(dx, x.dtype), cast(dmatrices, matrices.dtype)


_OPERANDS = (
    "Tensor x, Tensor matrices, Tensor src, Tensor dst, Tensor row_ptr, Tensor col_ptr, "
    "Tensor transpose"
)
_forward = operator(
    f"edge_matrix_sum({_OPERANDS}, bool mean) -> Tensor",
    cpu=_on_cpu,
    cuda=None,
    fake=lambda x, matrices, *_: x.new_empty(x.size(0), matrices.size(2)),
)
_backward = operator(
    f"edge_matrix_sum_backward(Tensor grad, {_OPERANDS}, Tensor? into, bool mean) "
    "-> (Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=None,
    fake=lambda grad, x, matrices, *_: (torch.empty_like(x), torch.empty_like(matrices)),
)


class EdgeMatrixSum(torch.autograd.Function):
    """Autograd function of ``edge_matrix_sum``; ``handed`` tells whether the matrices are handed
    on."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Returns the operator's ``[N, O]``, and the matrices if they are handed on."""
        *tensors, mean, handed = inputs
        ctx.save_for_backward(*tensors)
        ctx.mean = mean
        out = _forward(*tensors, mean)
        return (out, tensors[1].view_as(tensors[1])) if handed else out

    @staticmethod
    @differentiable_once("edge_matrix_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of ``x`` and of the matrices, the latter including the gradient of
        the matrices handed on."""
        grad, *handed = grads
        into = handed[0] if handed else None
        found = _backward(grad, *ctx.saved_tensors, into, ctx.mean)
        return *asked_of(ctx, found), *(None,) * 7


def edge_matrix_sum(
    x: Tensor,
    matrices: Tensor,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    *,
    mean: bool = False,
) -> Tensor:
    """Computes ``out[i] = sum over edges e into i of x[src[e]] @ matrices[e]``; CPU only.

    Args:
        x: ``[N, I]``; half precisions are accumulated in float32.
        matrices: ``[E, I, O]`` in the dtype of ``x``.
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.
        mean: divide the sum by the number of edges into ``i``, at least 1.

    Returns:
        ``[N, O]``, differentiable once in ``x`` and ``matrices``. Bitwise deterministic.
    """
    given = x.contiguous(), matrices.contiguous(), src, dst, row_ptr, col_ptr, transpose
    return EdgeMatrixSum.apply(*given, mean, False)


def edge_matrix_sum_handed_on(
    x: Tensor,
    matrices: Tensor,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    *,
    mean: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns :func:`edge_matrix_sum`, and the matrices for their next reader.

    Later code should read the returned matrices instead of those passed in.
    """
    given = x.contiguous(), matrices.contiguous(), src, dst, row_ptr, col_ptr, transpose
    return EdgeMatrixSum.apply(*given, mean, True)
