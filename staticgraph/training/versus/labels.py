"""The mean of a loss over an unpadded batch, without missing (NaN) targets.

The same rule as :mod:`staticgraph.steps.loss.missing_labels`, for plain PyG: the loss sees zeros in
place of NaN, and entries whose label was NaN are left out of the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from staticgraph.checking.plain_batch import PlainBatch
from staticgraph.schema import Schema
from staticgraph.steps.loss.mean_loss import Loss, LossTerms


def fields_with_gaps(schema: Schema) -> tuple[str, ...]:
    """The floating-point fields with missing values."""
    return tuple(f.name for f in schema if f.has_nan and f.dtype.startswith("float"))


class _Labels(PlainBatch):
    """A batch with zeros in place of NaN in some fields, which records the ones that are read."""

    def __init__(self, data: PlainBatch, gaps: Sequence[str]) -> None:
        super().__init__(data)
        self.__dict__.update(_gaps=gaps, _read=[])

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name in self.__dict__["_gaps"]:
            self.__dict__["_read"].append(name)
            value = torch.nan_to_num(value, nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        return value

    def __getitem__(self, name: Any) -> Any:
        return getattr(self, name)


def plain_mean(loss: Loss, out: Any, data: PlainBatch, gaps: Sequence[str]) -> Tensor:
    """The mean of a loss over an unpadded batch, 0-dim.

    Args:
        loss: the loss, as a runner takes it.
        out: the model's output.
        data: the batch.
        gaps: the fields with missing values.
    """
    asked: Any = _Labels(data, gaps) if gaps else data
    terms = LossTerms.of(loss(out, asked))
    if not gaps or not asked.__dict__["_read"]:
        return terms.mean()
    known = torch.ones_like(terms.values, dtype=torch.bool)
    for name in asked.__dict__["_read"]:
        label = data[name]
        if label.numel() == known.numel():
            known &= ~torch.isnan(label).view(known.shape)
    shares = known.to(terms.values.dtype)
    if terms.weights is not None:
        shares = shares * terms.weights.to(shares.dtype).expand(shares.shape)
    mean = torch.where(known, terms.values * shares, 0).sum() / shares.sum()
    return terms.add_to(mean)
