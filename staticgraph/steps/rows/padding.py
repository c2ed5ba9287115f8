"""Padding rows set to zero: of a model's output always, of its input if requested.

A step also computes something in the padding rows. In the outputs that are rows of the batch
(:mod:`staticgraph.steps.rows.provenance`) they are set to zero, so that a sum over all rows by
mistake is still finite. In the inputs, every fill of a slot already sets them to zero; only a batch
from elsewhere can carry NaN or infinities in its padding, which no later mask undoes (zero times
NaN is NaN in a weight's gradient). ``sanitize=True`` sets them to zero inside the step.
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
    """Returns ``out`` with zeros in the padding rows of the tensors whose level is known.

    Tuples, lists and dicts are searched; anything else is left alone.
    """
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
    """Returns the batch with zeros in every padding row of every field, whatever they contained."""
    clean = {}
    for field in batch.layout.schema:
        if field.is_index:
            continue  # an index must keep its padding, which refers to padding rows
        value = batch[field.name]
        mask = batch[f"{field.level}_mask"]
        if field.rows > 1:
            mask = mask[:, None].expand(-1, field.rows).reshape(-1)
        clean[field.name] = _zero_but(mask.view(-1, *(1,) * (value.dim() - 1)), value)
    return batch.replace(**clean)


def _zero_but(mask: Tensor, value: Tensor) -> Tensor:
    """Returns the value where the mask is True, else zero, in the value's own dtype.

    With the number 0, bool would become int64, which indexes rows instead of masking them.
    """
    return torch.where(mask, value, False if value.dtype == torch.bool else 0)
