"""``table_sum`` as a torch operator: reference, registration, shapes, derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.register import operator
from staticgraph.kernels.table_sum import cpu
from staticgraph.text.how_many import how_many


def table_sum_reference(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """Computes ``table_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.table_sum`.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    rows = weight.to(wide).index_select(0, (index + offsets[:-1]).view(-1))
    return rows.view(*index.shape, weight.size(1)).sum(1).to(weight.dtype)


def _check(place: int, index: Tensor, offsets: Tensor, *_: Tensor) -> None:
    """Raises if ``place``, the position of the first index outside its table, is not -1."""
    if place < 0:
        return
    row, column = divmod(place, index.size(1))
    rows = int(offsets[column + 1] - offsets[column])
    raise IndexError(
        f"column {column} has {int(index[row, column])} in row {row}, but its table has "
        f"{how_many(rows, 'row')}: make num_embeddings larger, or count from 0"
    )


# The gradient of the stacked tables.
_table_gradient = operator(
    "table_sum_backward(Tensor grad, Tensor index, Tensor offsets, SymInt entries) "
    "-> (Tensor dweight)",
    cpu=cpu.backward,
    cuda="table_sum.gpu:backward",
    fake=lambda grad, index, offsets, entries: grad.new_empty(entries, grad.size(1)),
).overload
_table_sum = operator(
    "table_sum(Tensor index, Tensor offsets, Tensor weight) -> Tensor",
    cpu=cpu.forward,
    cuda="table_sum.gpu:forward",
    fake=lambda index, offsets, weight: weight.new_empty(index.size(0), weight.size(1)),
    check=_check,
).overload
_codes = operator(
    "fold_codes(Tensor index, Tensor offsets) -> Tensor",
    cpu=cpu.codes,
    fake=lambda index, offsets: index.new_empty(index.size(0)),
    check=_check,
).overload


class TableSum(torch.autograd.Function):
    """Autograd function of ``table_sum``."""

    @staticmethod
    def forward(ctx: Any, index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
        """Returns the operator's ``[R, F]``."""
        ctx.save_for_backward(index, offsets)
        ctx.entries = weight.size(0)
        return _table_sum(index, offsets, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradient of the stacked tables."""
        return None, None, SummedByEntry.apply(grads[0], *ctx.saved_tensors, ctx.entries)


class SummedByEntry(torch.autograd.Function):
    """Autograd function of the gradient of tables: the derivative of a sum is a lookup."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, offsets: Tensor, entries: int) -> Tensor:
        """Returns the sums, ``[V, F]``."""
        ctx.save_for_backward(index, offsets)
        return _table_gradient(rows.contiguous(), index, offsets, entries)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradient of the rows."""
        index, offsets = ctx.saved_tensors
        return TableSum.apply(index, offsets, grads[0].contiguous()), None, None, None


def table_sum(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """Computes ``out[r] = sum over columns c of weight[offsets[c] + index[r, c]]``.

    That is a lookup in several stacked embedding tables, summed.

    Args:
        index: ``[R, C]`` int64, each column an index into its own table.
        offsets: ``[C + 1]`` int64, the start of each table, and the end of the last.
        weight: ``[V, F]``, the stacked tables; half precisions are accumulated in float32.

    Returns:
        ``[R, F]`` in the dtype of ``weight``, differentiable any number of times in
        it. Bitwise deterministic.

    Raises:
        IndexError: on a CPU, an index is outside its table; the message names it. On CUDA, where an
            error would end the process, its row of the result is NaN instead.
    """
    return TableSum.apply(index.contiguous(), offsets, weight.contiguous())


def fold_codes(index: Tensor, offsets: Tensor) -> Tensor:
    """Folds each row of indices into one number, its position among all combinations, on a CPU.

    The last column varies fastest, as in ``torch.cartesian_prod``.

    Args:
        index: ``[R, C]`` int64, as for :func:`table_sum`.
        offsets: ``[C + 1]`` int64.

    Returns:
        ``[R]`` int64, below the product of the tables' sizes.

    Raises:
        IndexError: an index is outside its table.
    """
    return _codes(index.contiguous(), offsets)
