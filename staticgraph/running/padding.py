"""Padding rows set to zero: of a model's output always, of its input where asked.

A step over padding computes something in the padding rows as well. What comes out of a model is
zeroed there, so that whoever sums over all rows by mistake gets a finite number. What goes in is
zeroed by every fill of a slot already; only a batch from elsewhere can carry NaN or infinities in
its padding, which no mask further down undoes (zero times NaN is NaN in a weight's gradient), and
``sanitize=True`` puts the zeros inside the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from staticgraph.batch import StaticBatch


def zero_padding(out: Any, batch: StaticBatch) -> Any:
    """``out`` with zeros in padding rows: of a tensor whose leading size is the batch's graphs,
    nodes or edges, and of such tensors in tuples, lists and dicts. Anything else is left alone."""
    if isinstance(out, Tensor):
        mask = _mask_for(out, batch)
        return out if mask is None else torch.where(mask, out, 0)
    if type(out) in (tuple, list):
        return type(out)(zero_padding(item, batch) for item in out)
    if type(out) is dict:
        return {key: zero_padding(item, batch) for key, item in out.items()}
    return out


def _mask_for(value: Tensor, batch: StaticBatch) -> Tensor | None:
    if not value.dim():
        return None
    for level in batch.levels:
        # A size that depends on data is not asked about: the trace is to end at the line that
        # made it, not here.
        if statically_known_true(value.shape[0] == batch.capacity.rows(level)):
            return batch[f"{level}_mask"].view(-1, *(1,) * (value.dim() - 1))
    return None


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
        clean[field.name] = torch.where(mask.view(-1, *(1,) * (value.dim() - 1)), value, 0)
    return batch.replace(**clean)
