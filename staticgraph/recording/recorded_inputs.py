"""The memory that recordings read: a slot at fixed addresses, which every batch is copied to.

All buckets share it, since no two recordings run at once. A batch with a single buffer takes one
copy; a batch known by its ids alone is made in place
(:mod:`staticgraph.recording.recorded_collation`); any other is copied array by array.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.from_device import CollatedTensors
from staticgraph.batches.slots.slots import Slot, SlotLayout
from staticgraph.errors import NotStatic
from staticgraph.internals.foreach import copy_all
from staticgraph.recording.recorded_collation import RecordedCollation


class RecordedInputs:
    """The inputs of one runner's recordings.

    Args:
        device: the device of the model.

    Attributes:
        batches: for each bucket, the batch that its recordings read.
        collation: makes batches from ids, if the store is on the device.
        unrecorded_fills: how many batches were made from ids without a recording.
    """

    def __init__(self, device: torch.device) -> None:
        self.batches: dict[int, StaticBatch] = {}
        self.collation: RecordedCollation | None = None
        self.unrecorded_fills: int = 0
        self._device = device
        self._slot: Slot | None = None
        self._whole: dict[int, Tensor] = {}  # the same memory as one tensor, for a single copy

    def prepare(self, layouts: list[SlotLayout]) -> None:
        """Allocates the slot, filled with padding alone: finite values to warm up with."""
        self._slot = slot = Slot(layouts, self._device, pinned=False)
        for layout in layouts:
            self.batches[layout.bucket] = StaticBatch(layout, slot.tensors(layout.bucket))
            self._whole[layout.bucket] = slot.whole(layout.bucket)
            self.blank(layout.bucket)

    @property
    def buffer(self) -> Tensor | None:
        """``[bytes]`` uint8: the memory of the inputs of all buckets; None before ``prepare``."""
        return None if self._slot is None else self._slot.buffer

    def blank(self, bucket: int) -> StaticBatch:
        """Fills a bucket's input with padding alone, and returns it."""
        inputs = self.batches[bucket]
        padding = StaticBatch.blank(inputs.layout, self._device)
        self.take(padding, padding.tensors())
        return inputs

    def take(self, batch: StaticBatch, arrays: Mapping[str, Tensor]) -> None:
        """Copies a batch to the recorded addresses of its bucket.

        Args:
            batch: on the device.
            arrays: its tensors.

        Raises:
            NotStatic: it has other fields than the recording.
        """
        inputs = self.batches[batch.bucket]
        targets = inputs.tensors()
        if type(arrays) is CollatedTensors:
            if self.collation is None or not self.collation.fill(batch.bucket, arrays):
                self.unrecorded_fills += 1
                arrays.into(inputs.layout, targets)
            return
        buffer = batch.buffer
        if buffer is not None and batch.layout.nbytes == inputs.layout.nbytes:
            self._whole[batch.bucket].copy_(buffer, non_blocking=True)
            return
        if arrays.keys() != targets.keys():
            missing = sorted(arrays.keys() ^ targets.keys())
            raise NotStatic(
                f"the batch and the recording differ in {', '.join(missing)}: make the loader over "
                "the data that the plan was made for"
            )
        with torch.set_grad_enabled(False):  # half as many calls as no_grad
            copy_all(list(targets.values()), list(arrays.values()))
