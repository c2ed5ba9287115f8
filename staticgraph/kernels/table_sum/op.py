"""``table_sum`` as a torch operator: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.register import differentiable_once, operator
from staticgraph.kernels.table_sum import cpu
from staticgraph.kernels.threads import threads_for
from staticgraph.text.how_many import how_many


def table_sum_reference(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """Computes ``table_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.table_sum`.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    rows = weight.to(wide).index_select(0, (index + offsets[:-1]).view(-1))
    return rows.view(*index.shape, weight.size(1)).sum(1).to(weight.dtype)


def _on_cpu(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    wide = weight if weight.dtype == torch.float64 else weight.float()
    out = wide.new_empty(len(index), weight.size(1))
    _check(
        cpu.forward(
            index.numpy(),
            offsets.numpy(),
            wide.detach().numpy(),
            out.numpy(),
            threads_for(index.numel() * wide.size(1)),
        ),
        index,
        offsets,
    )
    return out.to(weight.dtype)


def _check(place: int, index: Tensor, offsets: Tensor) -> None:
    """Raises if ``place``, the position of the first index outside its table, is not -1."""
    if place < 0:
        return
    row, column = divmod(place, index.size(1))
    rows = int(offsets[column + 1] - offsets[column])
    raise IndexError(
        f"column {column} has {int(index[row, column])} in row {row}, but its table has "
        f"{how_many(rows, 'row')}: make num_embeddings larger, or count from 0"
    )


def _backward_on_cpu(grad: Tensor, index: Tensor, offsets: Tensor | None, entries: int) -> Tensor:
    wide = grad if grad.dtype == torch.float64 else grad.float()
    offsets = torch.tensor([0, entries]) if offsets is None else offsets
    dweight = wide.new_empty(entries, grad.size(1))
    cpu.backward(
        wide.contiguous().numpy(),
        index.numpy(),
        offsets.numpy(),
        dweight.numpy(),
        threads_for(index.numel() * wide.size(1)),
    )
    return dweight.to(grad.dtype)


def _on_cuda(*arguments):
    from staticgraph.kernels.table_sum import gpu

    return gpu.forward(*arguments)


def _backward_on_cuda(*arguments):
    from staticgraph.kernels.table_sum import gpu

    return gpu.backward(*arguments)


_forward = operator(
    "table_sum(Tensor index, Tensor offsets, Tensor weight) -> Tensor",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=lambda index, offsets, weight: weight.new_empty(index.size(0), weight.size(1)),
)
# The gradient of the stacked tables; without offsets there is one table.
table_gradient: Callable[..., Tensor] = operator(
    "table_sum_backward(Tensor grad, Tensor index, Tensor? offsets, SymInt entries) -> Tensor",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=lambda grad, index, offsets, entries: grad.new_empty(entries, grad.size(1)),
)


class TableSum(torch.autograd.Function):
    """Autograd function of ``table_sum``."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the operator's ``[R, F]``."""
        index, offsets, weight = inputs
        ctx.save_for_backward(index, offsets)
        ctx.entries = weight.size(0)
        return _forward(index, offsets, weight)

    @staticmethod
    @differentiable_once("table_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradient of the stacked tables, ``[V, F]``."""
        index, offsets = ctx.saved_tensors
        return None, None, table_gradient(grads[0], index, offsets, ctx.entries)


def table_sum(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """Computes ``out[r] = sum over columns c of weight[offsets[c] + index[r, c]]``.

    That is a lookup in several stacked embedding tables, summed.

    Args:
        index: ``[R, C]`` int64, each column an index into its own table.
        offsets: ``[C + 1]`` int64, the start of each table, and the end of the last.
        weight: ``[V, F]``, the stacked tables; half precisions are accumulated in float32.

    Returns:
        ``[R, F]`` in the dtype of ``weight``, differentiable once in it. Bitwise deterministic.

    Raises:
        IndexError: on a CPU, an index is outside its table; the message names it. On CUDA, where an
            error would end the process, its row of the result is NaN instead.
    """
    return TableSum.apply(index.contiguous(), offsets, weight.contiguous())


def _codes_on_cpu(index: Tensor, offsets: Tensor) -> Tensor:
    out = torch.empty(len(index), dtype=torch.int64)
    _check(cpu.codes(index.numpy(), offsets.numpy(), out.numpy()), index, offsets)
    return out


def _codes_on_cuda(index, offsets):
    from staticgraph.kernels.table_sum import gpu

    return gpu.codes(index, offsets)


_codes = operator(
    "fold_codes(Tensor index, Tensor offsets) -> Tensor",
    cpu=_codes_on_cpu,
    cuda=_codes_on_cuda,
    fake=lambda index, offsets: index.new_empty(index.size(0)),
)


def fold_codes(index: Tensor, offsets: Tensor) -> Tensor:
    """Folds each row of indices into one number, its position among all combinations.

    The last column varies fastest, as in ``torch.cartesian_prod``.

    Args:
        index: ``[R, C]`` int64, as for :func:`table_sum`.
        offsets: ``[C + 1]`` int64.

    Returns:
        ``[R]`` int64, below the product of the tables' sizes.

    Raises:
        IndexError: on a CPU, an index is outside its table. On CUDA such an index is clamped to its
            table.
    """
    return _codes(index.contiguous(), offsets)
