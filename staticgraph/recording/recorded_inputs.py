"""The memory that recordings read: a slot at fixed addresses, which every batch is copied to.

All buckets share it, since no two recordings run at once. A batch with a single buffer takes one
copy; a batch known by its ids alone is made in place; any other is copied array by array.

The problem of graphs on the device: a batch that was made elsewhere is first copied there, some
hundred kilobytes per step. The idea: it is made directly in that place, by work that is recorded as
well. Its only inputs are the ids, ``[G]`` int32 at their own address, which the host writes
directly.

That work comes first in a recording of the whole step, so that going from ids to an update is a
single launch. If the step's own recording is to serve batches of every origin, the work instead has
one recording per bucket, replayed before the step on the same stream; likewise for a forward whose
backward is another recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.collation.collate_arguments import collate_arguments
from staticgraph.batches.loading.from_device import CollatedTensors
from staticgraph.batches.slots.slots import Slot, SlotLayout
from staticgraph.internals.dispatch import copy_all
from staticgraph.kernels.collate import collate
from staticgraph.recording.graph_recorder import Recorded, Recorder, Replays
from staticgraph.store.on_device import DeviceStore


class RecordedCollation:
    """Fills input slots from one store.

    Args:
        store: the graphs.
        inputs: for each bucket, the batch whose arrays a step reads.
        replays: the counter of the steps' replays, which counts these as well.

    Attributes:
        store: the graphs.
        ids: of each bucket, ``[G]`` int32, where the ids of a batch are read.
        bodies: of each bucket, the function that makes its input from the ids that are there.

    Raises:
        ValueError: the steps read row pointers, and the store was moved to the device without them.
    """

    def __init__(
        self, store: DeviceStore, inputs: Mapping[int, StaticBatch], replays: Replays
    ) -> None:
        self.store = store
        self._replays = replays
        most = max(batch.num_graphs for batch in inputs.values())
        self._ids = torch.full((most,), -1, dtype=torch.int32, device=store.device)
        self.ids: dict[int, Tensor] = {b: self._ids[: i.num_graphs] for b, i in inputs.items()}
        self.bodies: dict[int, Callable[[], None]] = {
            bucket: partial(
                collate,
                self.ids[bucket],
                collate_arguments(store, batch.layout, batch.tensors()),
            )
            for bucket, batch in inputs.items()
        }
        self._recordings: dict[int, Recorded] = {}

    def clear(self) -> None:
        """Sets the ids to those of a batch of padding alone."""
        self._ids.fill_(-1)

    def record(self, recorder: Recorder, only: int | None = None) -> None:
        """Makes a recording for every bucket, or only for one, in the pool of the steps."""
        for bucket, body in self.bodies.items():
            if bucket in self._recordings or only not in (None, bucket):
                continue
            recorder.warm(body, 1)  # compiles the kernels
            self._recordings[bucket] = recorder.record(body)

    def fill(self, bucket: int, batch: CollatedTensors) -> bool:
        """Makes a batch in its bucket's input, by the bucket's own recording.

        Returns False if the batch is of another store, or there is no such recording.
        """
        if batch.store is not self.store or bucket not in self._recordings:
            return False
        batch.send_ids(self.ids[bucket])
        self._replays.run(self._recordings[bucket])
        return True


class RecordedInputs:
    """The inputs of one runner's recordings, filled with padding alone at first: finite values to
    warm up with.

    Args:
        layouts: of all buckets.
        device: the device of the model.

    Attributes:
        batches: for each bucket, the batch that its recordings read.
        buffer: ``[bytes]`` uint8, the memory of all of them.
        collation: makes batches from ids, if the store is on the device.
        unrecorded_fills: how many batches were made from ids without a recording.
    """

    def __init__(self, layouts: list[SlotLayout], device: torch.device) -> None:
        self.batches: dict[int, StaticBatch] = {}
        self.collation: RecordedCollation | None = None
        self.unrecorded_fills: int = 0
        self._device = device
        slot = Slot(layouts, device, pinned=False)
        self.buffer: Tensor = slot.buffer
        self._whole: dict[int, Tensor] = {}  # the same memory as one tensor, for a single copy
        for layout in layouts:
            views = slot.of(layout.bucket)
            self.batches[layout.bucket] = StaticBatch(layout, views.tensors)
            self._whole[layout.bucket] = views.whole
            self.blank(layout.bucket)

    def blank(self, bucket: int) -> StaticBatch:
        """Fills a bucket's input with padding alone, and returns it."""
        inputs = self.batches[bucket]
        padding = StaticBatch.blank(inputs.layout, self._device)
        self.take(padding, padding.tensors())
        return inputs

    def take(self, batch: StaticBatch, arrays: Mapping[str, Tensor]) -> None:
        """Copies a batch to its bucket's addresses, in one copy if it has one buffer, or makes it
        there.

        Args:
            batch: on the device.
            arrays: its tensors.

        Raises:
            NotStatic: it has other arrays than the recording.
        """
        inputs = self.batches[batch.bucket]
        targets = inputs.tensors()
        if type(arrays) is CollatedTensors:
            if self.collation is None or not self.collation.fill(batch.bucket, arrays):
                self.unrecorded_fills += 1
                arrays.into(inputs.layout, targets)
            return
        buffer, whole = batch.buffer, self._whole[batch.bucket]
        alike = batch.layout is inputs.layout or batch.layout.entries == inputs.layout.entries
        if alike and buffer is not None and buffer.shape == whole.shape:
            whole.copy_(buffer, non_blocking=True)
            return
        values = inputs.layout.in_order(batch.layout, arrays)
        with torch.set_grad_enabled(False):  # half as many calls as no_grad
            copy_all(list(targets.values()), values)
