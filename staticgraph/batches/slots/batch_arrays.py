"""What is needed to read a batch: its layout, its real counts and its tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.schema import Level
from staticgraph.sizes.capacity import Capacity


class BatchArrays(Protocol):
    """What helpers use of :class:`staticgraph.batches.batch.static_batch.StaticBatch`."""

    layout: SlotLayout

    @property
    def capacity(self) -> Capacity:
        """The bucket's physical sizes."""
        ...

    @property
    def real_counts(self) -> RealCounts:
        """The real rows as host numbers."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors by name."""
        ...

    def level_of(self, value: Tensor) -> Level:
        """Returns the level of a tensor's rows."""
        ...
