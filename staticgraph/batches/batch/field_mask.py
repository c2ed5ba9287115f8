"""Which rows of one field of a batch are real."""

from __future__ import annotations

from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.schema import Field


def field_mask(batch: StaticBatch, field: Field) -> Tensor:
    """``[rows of the field]`` bool: its level's mask, each entry ``field.rows`` times."""
    return batch[f"{field.level}_mask"].repeat_interleave(field.rows)
