"""Padding rows set to zero: of a model's output always, of its input where asked.

A step over padding computes something in the padding rows as well. What comes out of a model as
rows of the batch (:mod:`staticgraph.steps.rows.provenance`) is zeroed there, so that whoever sums
over all rows by mistake gets a finite number. What goes in is zeroed by every fill of a slot
already; only a batch from elsewhere can carry NaN or infinities in its padding, which no mask
further down undoes (zero times NaN is NaN in a weight's gradient), and ``sanitize=True`` puts the
zeros inside the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import parts_of, with_parts
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.schema import Level
from staticgraph.steps.rows.provenance import Path


def zero_padding(
    out: Any, batch: StaticBatch, levels: Mapping[Path, Level | None], path: Path = ()
) -> Any:
    """``out`` with zeros in padding rows of the tensors whose level is known, in tuples, lists and
    dicts as well. Anything else is left alone."""
    if isinstance(out, Tensor):
        level = levels.get(path)
        if level is None:
            return out
        mask = batch[f"{level}_mask"].view(-1, *(1,) * (out.dim() - 1))
        return _zero_but(mask, out)
    parts = parts_of(out)
    if parts is None:
        return out
    return with_parts(out, [zero_padding(item, batch, levels, (*path, key)) for key, item in parts])


def sanitized(batch: StaticBatch) -> StaticBatch:
    """The batch with zeros in every padding row of every field, whatever stood there."""
    clean = {}
    for field in batch.layout.schema:
        if field.is_index:
            continue  # its padding counts padding
        value = batch[field.name]
        mask = batch[f"{field.level}_mask"]
        if field.rows > 1:
            mask = mask[:, None].expand(-1, field.rows).reshape(-1)
        clean[field.name] = _zero_but(mask.view(-1, *(1,) * (value.dim() - 1)), value)
    return batch.replace(**clean)


def _zero_but(mask: Tensor, value: Tensor) -> Tensor:
    """The value where the mask is, else zero, in its own dtype: beside the number 0 truth values
    would become whole numbers, which index rows and are no mask any more."""
    return torch.where(mask, value, False if value.dtype == torch.bool else 0)
