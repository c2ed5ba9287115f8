"""The mean of a loss over real rows, and over labelled targets.

``loss(out, batch)`` gives one value a row; the padded rows, and targets that are NaN (OGB's way of
saying "no label"), must take no part, neither in the mean nor in a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.batch import StaticBatch
from staticgraph.schema import Field

TARGET = "y"


def without_missing(batch: StaticBatch) -> StaticBatch:
    """The batch with zeros for NaN targets, so that their loss is finite and its gradient too."""
    missing = [field.name for field in batch.layout.schema if _is_target(field) and field.has_nan]
    if not missing:
        return batch
    return batch.replace(**{name: _zero_for_nan(batch[name]) for name in missing})


def _zero_for_nan(target: Tensor) -> Tensor:
    """Infinities stay, where ``nan_to_num`` would make the dtype's largest number of them."""
    return torch.where(torch.isnan(target), 0, target)


def masked_mean(values: Tensor, batch: StaticBatch) -> Tensor:
    """The mean of a loss over the real rows of a batch.

    Args:
        values: ``[G, ...]``, ``[N, ...]``, ``[E, ...]`` or the rows of a type: one value a row, or
            several. Where
            targets may be missing it has the target's shape, and missing entries are left out.
        batch: with its targets as they came, NaN included.

    Returns:
        A 0-dim tensor; 0 where nothing is real.

    Raises:
        ValueError: a scalar, rows that are not the batch's, or a loss already summed over targets
            of which some are missing.
    """
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
    target = _missing_target(batch, values)
    if target is not None:
        if target.numel() != values.numel():
            raise ValueError(
                f"some targets are missing (NaN), so the loss must have the shape of y, "
                f"{list(target.shape)}, for them to be left out; it has {list(values.shape)}"
            )
        mask = mask & ~torch.isnan(target).view(values.shape)
    count = mask.sum().clamp(min=1)
    return torch.where(mask, values, 0).sum() / count


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


def _is_target(field: Field) -> bool:
    """``y``, or the ``y`` of a type."""
    return field.name.rpartition(".")[2] == TARGET


def _missing_target(batch: StaticBatch, values: Tensor) -> Tensor | None:
    """The target that goes with a loss, where some of it is missing: that of the type whose rows
    these are, if it has one, or the batch's own."""
    schema = batch.layout.schema
    typed = f"{batch.level_of(values)}.{TARGET}"
    name = typed if typed in schema else TARGET
    return batch[name] if name in schema and schema[name].has_nan else None
