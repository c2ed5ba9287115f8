"""BatchNorm over the real rows of a padded batch.

Padding rows that enter the mean and the variance change every output and, through the running
statistics, every later evaluation. Here both are computed over the rows that the batch's mask marks
as real; running statistics, momentum and the unbiased variance equal torch's on the unpadded batch
(Ioffe and Szegedy 2015, algorithm 1).
Padding rows of the output are zero. Over several ranks (``SyncBatchNorm``) sums and counts cover
the real rows of all ranks, so that a rank with a half-empty batch has half the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm import Running, batch_norm
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import present
from staticgraph.nn.context.leaf_calls import leaf

# The field of a batch that holds the number of real rows of a level.
COUNTED = {"node": "num_real_nodes", "edge": "num_real_edges", "graph": "num_real_graphs"}

# A tensor of a norm over rows that a pool selected: True once there was a single real row. It is no
# buffer, so that a twin of the model made before (AveragedModel) has the same buffers in its order.
SINGLE = "_staticgraph_single"


def flag_single_rows(norm: torch.nn.Module, device: torch.device) -> None:
    """Gives a norm its flag, at a fixed address, unless it has one on this device."""
    from staticgraph.internals.tracing import mark_static_address  # loads Dynamo

    flag = vars(norm).get(SINGLE)
    if flag is None or flag.device != device:
        with torch.inference_mode(False):  # training steps write to it, too
            flag = torch.zeros((), dtype=torch.bool, device=device)
        mark_static_address(flag)
        setattr(norm, SINGLE, flag)


def masked_batch_norm(
    norm: torch.nn.modules.batchnorm._BatchNorm,
    input: Tensor,
    mask: Tensor,
    group: torch.distributed.ProcessGroup | None = None,
) -> Tensor:
    """``norm`` of ``input`` ``[R, C, ...]`` with statistics over the rows in ``mask`` ``[R]``.

    Args:
        norm: provides the weights, the options, and the running statistics to update.
        input: any float dtype; statistics are in float32 or wider.
        mask: bool, True on real rows.
        group: a process group to sum statistics over, or None.
    """
    dims = [d for d in range(input.dim()) if d != 1]
    shape = (1, -1, *(1,) * (input.dim() - 2))  # broadcasts channels over the input
    mask = mask.view(-1, *(1,) * (input.dim() - 1))
    values = input if input.dtype == torch.float64 else input.float()
    values = torch.where(mask, values, 0)
    count = mask.sum() * (input[0, 0].numel() if input.dim() > 2 else 1)
    total = values.sum(dims)
    if group is not None:
        total, count = _summed(total, group), _summed(count, group)
    safe = count.clamp(min=1).to(values.dtype)
    mean = total / safe
    centred = torch.where(mask, values - mean.view(shape), 0)
    squares = centred.square().sum(dims)
    var = (_summed(squares, group) if group is not None else squares) / safe
    if _tracks(norm):
        _update_running(norm, mean.detach(), var.detach(), count)
    out = centred * (var + norm.eps).rsqrt().view(shape)
    if norm.weight is not None:
        out = out * norm.weight.view(shape) + torch.where(mask, norm.bias.view(shape), 0)
    return out.to(input.dtype)


def _tracks(norm: torch.nn.modules.batchnorm._BatchNorm) -> bool:
    """Whether a call updates running statistics; the flag may be cleared after they were made."""
    return norm.training and norm.track_running_stats and norm.running_mean is not None


def _update_running(
    norm: torch.nn.modules.batchnorm._BatchNorm, mean: Tensor, var: Tensor, count: Tensor
) -> None:
    """Updates the running statistics as torch does.

    A single value, which torch refuses, leaves them unchanged, as does a batch of padding alone:
    the variance of one value is 0 and carries no information.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    seen = count > 1
    if (flag := getattr(norm, SINGLE, None)) is not None:
        flag.logical_or_(count == 1)
    norm.num_batches_tracked.add_(seen)
    running = norm.running_mean.dtype
    factor = seen.to(running)
    if norm.momentum is None:
        factor = factor / norm.num_batches_tracked.clamp(min=1)
    else:
        factor = factor * norm.momentum
    unbiased = var * (count.to(var.dtype) / (count - 1).clamp(min=1))
    norm.running_mean.lerp_(mean.to(running), factor)
    norm.running_var.lerp_(unbiased.to(running), factor)


def check_not_single(input: Tensor, rows: int | None) -> None:
    """Refuses a norm over one value per channel, as torch does.

    Raises:
        ValueError: only one row is known to be real, and it has one value per channel.
    """
    if rows == 1 and input[0].numel() == input.shape[1]:
        raise ValueError(single_row("BatchNorm", list(input.shape)))


def single_row(norm: str, shape: list[int] | None = None) -> str:
    """Returns the error message for a norm over one real row."""
    of = f" of a padded input of shape {shape}" if shape else ""
    return (
        f"{norm}: expected more than 1 value per channel when training, got one real row{of}: its "
        "variance is 0, and torch refuses it as well. Leave the odd graph out of the epoch "
        "(indices=...), choose another batch size, set the layer to eval(), or use PyG's "
        "BatchNorm(allow_single_element=True)"
    )


def _over_real_rows(
    norm: MaskedBatchNorm1d | MaskedBatchNorm2d | MaskedSyncBatchNorm,
    stock: Callable[[Tensor], Tensor],
    input: Tensor,
) -> Tensor:
    """The output of a converted layer; ``stock`` is the layer's own forward."""
    context, binding = norm._staticgraph, present()
    from_batch = norm.training or norm.running_mean is None
    if binding is None or not from_batch:
        return stock(input)
    if (each := context.rows_each(norm, input)) > 1:
        values = input.view(-1, each, input.size(1)).transpose(1, 2)
        out = _over_real_rows(norm, stock, values)
        return out.transpose(1, 2).reshape(input.shape)
    row_kind = context.rows_under(norm, input)
    if row_kind is None:
        return stock(input)
    rows = context.real_rows(row_kind)
    check_not_single(input, rows)
    if rows is None or rows < 2:
        if binding.leaves and row_kind.counted is not None and norm.weight is not None:
            field = COUNTED.get(row_kind.counted)
            count = getattr(binding.batch, field) if field else row_kind.mask.sum()
            return _as_leaf(norm, input, count)
        return masked_batch_norm(norm, input, row_kind.mask)
    # Outside a compiled step the shapes are free: real rows come first, so the stock kernel
    # runs over just those: 0.23 ms forward and backward over 3,000 rows of 64 columns, where the
    # masked arithmetic takes 1.5 ms (one CPU core, 2026-11-20).
    return over_first_rows(stock, input, rows)


def over_first_rows(stock: Callable[[Tensor], Tensor], input: Tensor, rows: int) -> Tensor:
    """``stock`` of the first ``rows`` of ``input`` ``[R, ...]``; zeros in all others.

    A split and a concatenation copy once per direction. A slice and a pad copy or fill four times:
    20 of 255 ms of a profiled epoch of GINE (4x64, batch 128 of ESOL, one thread of an Intel Xeon
    with AVX-512, 2026-11-29, by a script that is not kept).
    """
    real, padding = input.split([rows, len(input) - rows])
    out = stock(real)
    return torch.cat([out, out.new_zeros(padding.shape)])


@leaf
def normed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    tracked: Tensor | None,
    momentum: float | None,
    eps: float,
) -> Tensor:
    """BatchNorm of ``x`` ``[R, F]`` over its first ``count`` rows, as :func:`masked_batch_norm`,
    in one operator; updates the running statistics, if given."""
    running = None
    if mean is not None and var is not None and tracked is not None:
        running = Running(mean, var, tracked, momentum)
    return batch_norm(x, weight, bias, count, eps=eps, running=running)[0]


def _as_leaf(
    norm: MaskedBatchNorm1d | MaskedBatchNorm2d | MaskedSyncBatchNorm, input: Tensor, count: Tensor
) -> Tensor:
    moved = (None, None, None)
    if _tracks(norm):
        moved = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    momentum, eps = norm.momentum, norm.eps
    if input.dim() == 2:
        return normed(input, norm.weight, norm.bias, count, *moved, momentum, eps)
    # [R, C, T]: a row has T values per channel, each a row of its own in [R * T, C].
    last = input.movedim(1, -1)
    rows, count = last.reshape(-1, last.size(-1)), count * math.prod(last.shape[1:-1])
    out = normed(rows, norm.weight, norm.bias, count, *moved, momentum, eps)
    return out.view(last.shape).movedim(-1, 1).contiguous()  # as torch's own, for x.view(...)


class MaskedBatchNorm1d(torch.nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d``: statistics over real rows, with the same state.

    Which rows are real follows from the leading size: ``[N, C]`` nodes, ``[E, C]`` edges,
    ``[G, C]`` graphs, and the rows that self-loops and pools make from these; ``[N * k, C]`` is
    taken as ``[N, k, C]`` laid flat. Nodes, edges or graphs may be last, too: ``[k, C, N]``.

    Raises:
        NotStatic: the leading size is none of these.
    """

    _staticgraph: BatchContext

    _staticgraph_apart = False  # see asked.APART
    _staticgraph_flat = None  # see asked.FLAT

    def forward(self, input: Tensor) -> Tensor:
        """``[N, F]`` to the same; statistics over real rows."""
        if self._staticgraph.rows_last(self, input):
            return _over_real_rows(self, super().forward, input.transpose(0, 2)).transpose(0, 2)
        return _over_real_rows(self, super().forward, input)


class MaskedBatchNorm2d(torch.nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d``: statistics over real rows, with the same state.

    Which rows are real follows from the leading size, as in :class:`MaskedBatchNorm1d`. Places
    inside an image are not masked: a block of pairs ``[G, C, M, M]`` includes its padding.
    """

    _staticgraph: BatchContext

    _staticgraph_apart = False  # see asked.APART

    def forward(self, input: Tensor) -> Tensor:
        """``[N, C, h, w]`` to the same; statistics over real rows."""
        return _over_real_rows(self, super().forward, input)


class MaskedSyncBatchNorm(torch.nn.SyncBatchNorm):
    """``torch.nn.SyncBatchNorm``: statistics over the real rows of all ranks.

    Unlike torch's it also runs on the CPU.
    """

    _staticgraph: BatchContext

    _staticgraph_apart = False  # see asked.APART

    def forward(self, input: Tensor) -> Tensor:
        """``[N, F]`` to the same; statistics over the real rows of all ranks."""
        alone = not self.training or not torch.distributed.is_initialized()
        if alone or present() is None:
            return _over_real_rows(self, super().forward, input)
        group = self.process_group or torch.distributed.group.WORLD
        return masked_batch_norm(self, input, self._staticgraph.mask_of(input), group)


class _Summed(torch.autograd.Function):
    """The sum over all ranks; its derivative is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
        """Returns a new tensor with the sum; ``value`` is unchanged."""
        ctx.group = group
        total = value.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total, group=group)
        # A trace of torch 2.11 returns what was written to beside the result, and autograd takes
        # the gradient of one tensor that is returned twice to be that of the last.
        return total.clone() if torch.compiler.is_compiling() else total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The sum of all ranks' gradients; None for the group."""
        return _Summed.apply(grads[0], ctx.group), None


def _summed(value: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
    """The sum over all ranks, differentiable."""
    return _Summed.apply(value, group)  # pyright: ignore[reportReturnType]
