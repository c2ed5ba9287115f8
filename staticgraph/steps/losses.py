"""The mean of a loss over real rows, and over labelled targets.

``loss(out, batch)`` gives one value a row; the padded rows, and targets that are NaN (OGB's way of
saying "no label", see :mod:`staticgraph.steps.missing`), must take no part, neither in the mean
nor in a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.static_batch import StaticBatch
from staticgraph.distributed.share import Share
from staticgraph.steps.missing import for_loss, labelled

Loss = Callable[[Any, StaticBatch], Tensor]


def mean_loss(loss: Loss, out: Any, batch: StaticBatch, given: StaticBatch | None = None) -> Tensor:
    """The mean of ``loss(out, batch)`` over real rows and labelled targets, 0-dim.

    Args:
        loss: one value a row.
        out: the model's output.
        batch: perhaps with other tensors that the model has set.
        given: as the model got it.

    Raises:
        ValueError: see :func:`masked_mean`.
    """
    given = batch if given is None else given
    values, read = _values(loss, out, batch, given)
    return masked_mean(values, given, read)


def share_of_loss(
    loss: Loss, out: Any, batch: StaticBatch, given: StaticBatch | None = None
) -> Share:
    """What a batch adds to the mean over the batches of all ranks; as :func:`mean_loss`, which is
    its ``total / weight``."""
    given = batch if given is None else given
    values, read = _values(loss, out, batch, given)
    total, count = _masked_sum(values, given, read)
    physical = max(1, values.numel())
    exact = torch.float64 if total.dtype == torch.float64 else torch.float32
    return Share(total / physical, count.to(exact) / physical)


def _values(
    loss: Loss, out: Any, batch: StaticBatch, given: StaticBatch
) -> tuple[Tensor, Sequence[str]]:
    """The loss, one value a row, and the float fields that it read."""
    seen, fields = for_loss(batch, given)
    values = loss(out, seen)
    check_not_broadcast(values, out)
    return values, fields.read


def masked_mean(values: Tensor, batch: StaticBatch, read: Sequence[str] = ()) -> Tensor:
    """The mean of a loss over the real rows of a batch.

    Args:
        values: ``[G, ...]``, ``[N, ...]``, ``[E, ...]`` or the rows of a type: one value a row, or
            several. Where targets are missing it has the target's shape, and missing entries are
            left out.
        batch: with its targets as they came, NaN included.
        read: the float fields that the loss read.

    Returns:
        A 0-dim tensor; 0 where nothing is real, NaN where a missing label cannot be left out.

    Raises:
        ValueError: a scalar, rows that are not the batch's, or a loss already summed over targets
            of which some are missing.
    """
    total, count = _masked_sum(values, batch, read)
    return total / count.clamp(min=1)


def _masked_sum(values: Tensor, batch: StaticBatch, read: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The sum of a loss over real rows and labelled targets, NaN where a missing label cannot be
    left out; and how many values that were."""
    if not isinstance(values, Tensor):
        raise TypeError(
            f"the loss gives a {type(values).__name__}: return a tensor of one value a row, such "
            "as F.mse_loss(out, batch.y, reduction='none')"
        )
    if values.dim() == 0:
        raise ValueError(
            "the loss is a scalar, so padded rows are already averaged in: return one value a row, "
            "such as F.mse_loss(out, batch.y, reduction='none')"
        )
    mask = batch.mask_of(values).view(-1, *(1,) * (values.dim() - 1)).expand(values.shape)
    mask, lost = labelled(values, batch, mask, read)
    total = torch.where(mask, values, 0).sum()
    return total if lost is None else torch.where(lost, torch.nan, total), mask.sum()


def check_not_broadcast(values: Tensor, out: object) -> None:
    """Refuses the loss of an output ``[R, 1]`` against a target ``[R]``: each row against every
    target, ``[R, R]``, of which the mean is a number like any other.

    Raises:
        ValueError: the loss is that.
    """
    if not isinstance(out, Tensor) or out.dim() != 2 or not isinstance(values, Tensor):
        return
    rows = out.shape[0]
    if rows > 1 and out.shape[1] == 1 and tuple(values.shape) == (rows, rows):
        raise ValueError(
            f"the loss of an output of shape {list(out.shape)} has the shape {list(values.shape)}: "
            "each row was compared with every row's target; use out.squeeze(1), or "
            "batch.y.view(-1, 1)"
        )
