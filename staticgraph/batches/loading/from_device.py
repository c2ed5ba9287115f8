"""Batches of a dataset on the device: only ids cross the bus, and the arrays are made there.

The problem: a batch that the host fills crosses the bus as a slot, some hundred kilobytes per step.
If the graphs are already on the device, it is enough to say which ones: ``[G]`` int32. The idea: a
batch whose arrays are made when first read. For a model that reads them, they are made in the slot
that the batch holds (two launches); a recorded step instead makes them at its own addresses, from
the batch's ids, and the slot is never written.

The ids stay in pinned memory of the slot until they are needed: for a recorded step they are copied
to the place that it reads, and nowhere else.

Invariants: which graphs go together is decided by :mod:`staticgraph.epochs.batcher`, as always, and
each array equals, bit for bit, what the host would have filled in. A slot's ids are not overwritten
before the last copy of them has finished; on the device, too, they belong to the slot, so they last
as long as the batch does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.collation.collate_arguments import collate_arguments
from staticgraph.batches.slots.real_counts import real_counts
from staticgraph.batches.slots.slots import Lease, Slot, SlotLayout, SlotPool
from staticgraph.epochs.batcher import BatchIds
from staticgraph.errors import StaleBatch
from staticgraph.kernels.collate import collate
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.on_device import DeviceStore


class SlotIds:
    """The ids of a slot's current batch, and their copy on the device.

    Args:
        most: the largest number of graphs of any bucket.
        device: where batches are made.
        slot: the slot that they belong to.
    """

    __slots__ = ("_copied", "_device", "_device_ids", "_sent", "_slot", "host")

    def __init__(self, most: int, device: torch.device, slot: Slot) -> None:
        on_cuda = device.type == "cuda"
        self.host: Tensor = torch.empty(most, dtype=torch.int32, pin_memory=on_cuda)
        self._copied = torch.cuda.Event() if on_cuda else None
        self._device = device
        self._device_ids: Tensor | None = None
        self._sent = False
        self._slot = slot

    def write(self, ids: IntArray) -> None:
        """Stores the ids of another batch, followed by -1."""
        if self._copied is not None:
            self._copied.synchronize()  # returns at once if nothing was copied yet
        self.host[: len(ids)] = torch.from_numpy(ids.astype(np.int32))
        self.host[len(ids) :] = -1
        self._sent = False

    def copy_to(self, target: Tensor) -> None:
        """Copies the first ids to ``target`` ``[k]`` int32, on the current stream."""
        target.copy_(self.host[: len(target)], non_blocking=True)
        if self._copied is not None:
            # Without a stream, the event uses that of the current device, which may be another.
            self._copied.record(torch.cuda.current_stream(self._device))

    @property
    def on_device(self) -> Tensor:
        """``[most]`` int32 in memory of the slot; copied at the first access."""
        if not self._sent:
            if self._device_ids is None:
                self._device_ids = torch.empty_like(self.host, device=self._device)
            if self._copied is not None and self._slot.released is not None:
                # The previous batch's ids may have been read on another stream.
                torch.cuda.current_stream(self._device).wait_event(self._slot.released)
            self.copy_to(self._device_ids)
            if self._copied is not None:
                # As for the slot: this memory is reused only after the stream's work.
                self._device_ids.record_stream(torch.cuda.current_stream(self._device))
            self._sent = True
        assert self._device_ids is not None
        return self._device_ids


class CollatedTensors(Mapping[str, Tensor]):
    """The arrays of a batch by name, made when the first of them is read.

    Attributes:
        store: the store that holds the graphs.
    """

    __slots__ = ("_arrays", "_ids", "_layout", "_lease", "_made", "store")

    def __init__(self, store: DeviceStore, ids: SlotIds, layout: SlotLayout, lease: Lease) -> None:
        self.store: DeviceStore = store
        self._ids = ids
        self._layout = layout
        self._lease = lease
        self._arrays = lease.slot.of(layout.bucket).tensors
        self._made = False

    @property
    def device(self) -> torch.device:
        """The device that the arrays are, or will be, on."""
        return self.store.device

    @property
    def ids(self) -> Tensor:
        """``[G]`` int32 on the device: positions in the store, then -1."""
        return self._ids.on_device[: self._layout.capacity.graphs]

    @property
    def was_read(self) -> bool:
        """Whether any array has been read."""
        return self._made

    def send_ids(self, target: Tensor) -> None:
        """Writes the ids to ``[G]`` int32 on the device, on the current stream.

        Raises:
            StaleBatch: the batch was given back, and its ids are another's.
        """
        self.check()
        self._ids.copy_to(target)

    def __getitem__(self, name: str) -> Tensor:
        if not self._made:
            self.into(self._layout, self._arrays)
            self._made = True
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def into(self, layout: SlotLayout, arrays: Mapping[str, Tensor]) -> None:
        """Makes the batch in other arrays of the same bucket.

        Raises:
            StaleBatch: the batch was given back, and its ids are another's.
        """
        self.check()
        collate(self.ids, collate_arguments(self.store, layout, arrays))

    def check(self) -> None:
        """Raises StaleBatch if the ids now belong to another batch."""
        if self._lease.stale:
            raise StaleBatch(
                f"this batch of bucket {self._layout.bucket} gave its slot back before any of its "
                "arrays was read: use a batch before release(), or keep a copy with batch.clone()"
            )


class IdsFeed:
    """Turns ids of batches into batches on the device.

    Args:
        store: the graphs.
        layouts: one per bucket.
        pool: slots on the store's device.

    Raises:
        ValueError: batches need row pointers, and the store was moved to the device without them.
    """

    def __init__(self, store: DeviceStore, layouts: Sequence[SlotLayout], pool: SlotPool) -> None:
        if any(layout.pointers for layout in layouts) and not store.pointers:
            raise ValueError(
                f"pointers=True, but {store.name} was moved to {store.device} without row "
                "pointers: store.to(device, pointers=True)"
            )
        self._store = store
        self._layouts = layouts
        self._pool = pool
        self._most = max(layout.capacity.graphs for layout in layouts)
        self._of_slot: dict[Slot, SlotIds] = {}

    def batch(self, chosen: BatchIds) -> StaticBatch:
        """Returns one batch.

        Raises:
            GraphTooLarge: together the graphs exceed the bucket.
            SlotsExhausted: all slots are held by batches.
        """
        layout = self._layouts[chosen.bucket]
        real = real_counts(self._store.host, chosen.ids, layout.capacity)
        slot = self._pool.lend()
        lease = Lease(self._pool, slot)
        ids = self._write(chosen.ids, slot)
        tensors = CollatedTensors(self._store, ids, layout, lease)
        objects = self._store.host.objects_of(chosen.ids)
        return StaticBatch(layout, tensors, real, lease, objects)

    def _write(self, ids: IntArray, slot: Slot) -> SlotIds:
        if slot not in self._of_slot:
            self._of_slot[slot] = SlotIds(self._most, self._store.device, slot)
        self._of_slot[slot].write(ids)
        return self._of_slot[slot]
