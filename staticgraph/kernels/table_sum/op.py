"""``table_sum`` as an operator of torch: CPU kernel, Triton kernel, shapes, derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.table_sum import cpu


@torch.library.custom_op("staticgraph::table_sum", mutates_args=(), device_types="cpu")
def _forward(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    wide = weight if weight.dtype == torch.float64 else weight.float()
    out = wide.new_empty(len(index), weight.size(1))
    _check(
        cpu.forward(index.numpy(), offsets.numpy(), wide.detach().numpy(), out.numpy()),
        index,
        offsets,
    )
    return out.to(weight.dtype)


def _check(place: int, index: Tensor, offsets: Tensor) -> None:
    """``place`` is -1, or that of the first index outside its table."""
    if place < 0:
        return
    row, column = divmod(place, index.size(1))
    rows = int(offsets[column + 1] - offsets[column])
    raise IndexError(
        f"column {column} has {int(index[row, column])} in row {row}, but its table has "
        f"{rows} rows: make num_embeddings larger, or count from 0"
    )


@torch.library.custom_op("staticgraph::table_sum_backward", mutates_args=(), device_types="cpu")
def _backward(grad: Tensor, index: Tensor, offsets: Tensor, entries: int) -> Tensor:
    wide = grad if grad.dtype == torch.float64 else grad.float()
    dweight = wide.new_empty(entries, grad.size(1))
    cpu.backward(wide.contiguous().numpy(), index.numpy(), offsets.numpy(), dweight.numpy())
    return dweight.to(grad.dtype)


@_forward.register_kernel("cuda")
def _(index, offsets, weight):
    from staticgraph.kernels.table_sum import gpu

    return gpu.forward(index, offsets, weight)


@_backward.register_kernel("cuda")
def _(grad, index, offsets, entries):
    from staticgraph.kernels.table_sum import gpu

    return gpu.backward(grad, index, offsets, entries)


@_forward.register_fake
def _(index, offsets, weight):
    return weight.new_empty(index.size(0), weight.size(1))


@_backward.register_fake
def _(grad, index, offsets, entries):
    return grad.new_empty(entries, grad.size(1))


def _setup(ctx, inputs, output):
    index, offsets, weight = inputs
    ctx.save_for_backward(index, offsets)
    ctx.entries = weight.size(0)


def _derivative(ctx, grad):
    index, offsets = ctx.saved_tensors
    return None, None, _backward(grad, index, offsets, ctx.entries)


_forward.register_autograd(_derivative, setup_context=_setup)


def table_sum(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """``out[r] = sum over columns c of weight[offsets[c] + index[r, c]]``: several embedding
    tables, one above the other, looked up and added at once.

    Args:
        index: ``[R, C]`` int64, each column counted within its own table.
        offsets: ``[C + 1]`` int64, where each table begins, and the end of the last.
        weight: ``[V, F]``, the tables; half precisions are added up in float32.

    Returns:
        ``[R, F]`` in the dtype of ``weight``, differentiable once in it. The same bits every time.

    Raises:
        IndexError: on a CPU, an index outside its table; the message names it. On CUDA, where an
            error would end the process, its row of the result is NaN.
    """
    return _forward(index.contiguous(), offsets, weight.contiguous())


@torch.library.custom_op("staticgraph::fold_codes", mutates_args=(), device_types="cpu")
def _codes(index: Tensor, offsets: Tensor) -> Tensor:
    out = torch.empty(len(index), dtype=torch.int64)
    _check(cpu.codes(index.numpy(), offsets.numpy(), out.numpy()), index, offsets)
    return out


@_codes.register_kernel("cuda")
def _(index, offsets):
    from staticgraph.kernels.table_sum import gpu

    return gpu.codes(index, offsets)


@_codes.register_fake
def _(index, offsets):
    return index.new_empty(index.size(0))


def fold_codes(index: Tensor, offsets: Tensor) -> Tensor:
    """One number for each row of indices: its place among all combinations, last column fastest,
    which is the order of ``torch.cartesian_prod``.

    Args:
        index: ``[R, C]`` int64, as for :func:`table_sum`.
        offsets: ``[C + 1]`` int64.

    Returns:
        ``[R]`` int64, below the product of the tables' sizes.

    Raises:
        IndexError: on a CPU, an index outside its table. On CUDA such a row reads another's value.
    """
    return _codes(index.contiguous(), offsets)
