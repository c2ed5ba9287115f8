"""Batches of a data set that is on the device: ids cross the bus, the arrays are made over there.

The problem: a batch that the host fills crosses as a slot, some hundred kilobytes a step. Where the
graphs are on the device already, it is enough to say which: ``[G]`` int32. The idea: a batch whose
arrays are made when first read. A model that reads them has them made into the slot that the batch
was lent (two launches); a recorded step makes them at the addresses it knows instead, from the
batch's ids, and the slot is never written.

Invariants: which graphs go together is decided where it always is
(:mod:`staticgraph.epochs.batcher`), and each array equals, bit for bit, what the host would have
filled in. Ids are written to pinned memory in turn, each turn waiting for its last copy to end; on
the device they belong to the slot, so they stand as long as the batch does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.collate import real_counts
from staticgraph.batches.collate_arguments import collate_arguments
from staticgraph.batches.slots import Lease, Slot, SlotLayout, SlotPool
from staticgraph.batches.static_batch import StaticBatch
from staticgraph.epochs.batcher import BatchIds
from staticgraph.errors import StaleBatch
from staticgraph.kernels.collate import collate
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.on_device import DeviceStore

# One on its way while the next is written.
STAGED = 2


class CollatedTensors(Mapping[str, Tensor]):
    """The arrays of a batch by name, made when the first of them is read.

    Attributes:
        store: where the graphs are.
        ids: ``[G]`` int32 on the device: positions in the store, then -1.
    """

    __slots__ = ("_arrays", "_layout", "_lease", "_made", "ids", "store")

    def __init__(self, store: DeviceStore, ids: Tensor, layout: SlotLayout, lease: Lease) -> None:
        self.store = store
        self.ids = ids
        self._layout = layout
        self._lease = lease
        self._arrays = lease.slot.tensors(layout.bucket)
        self._made = False

    @property
    def device(self) -> torch.device:
        """Where the arrays are, or will be."""
        return self.ids.device

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
        """Raises StaleBatch where the ids are another batch's by now."""
        if self._lease.stale:
            raise StaleBatch(
                f"this batch of bucket {self._layout.bucket} gave its slot back before any of its "
                "arrays was read: use a batch before release(), or keep a copy with batch.clone()"
            )


class IdsFeed:
    """Ids of batches -> batches on the device.

    Args:
        store: the graphs.
        layouts: of the buckets.
        pool: slots on the store's device.

    Raises:
        ValueError: the batches shall have row pointers, and the store was moved without.
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
        self._of_slot: dict[Slot, Tensor] = {}
        self._cuda = store.device.type == "cuda"
        self._staged = [
            torch.empty(self._most, dtype=torch.int32, pin_memory=self._cuda) for _ in range(STAGED)
        ]
        self._copied = [torch.cuda.Event() for _ in range(STAGED)] if self._cuda else []
        self._stream = torch.cuda.Stream(store.device) if self._cuda else None
        self._turn = 0

    def batch(self, chosen: BatchIds) -> StaticBatch:
        """One batch.

        Raises:
            GraphTooLarge: together the graphs exceed the bucket.
            SlotsExhausted: all slots are held by batches.
        """
        layout = self._layouts[chosen.bucket]
        real = real_counts(self._store.host, chosen.ids, layout.capacity)
        slot = self._pool.lend()
        lease = Lease(self._pool, slot)
        ids = self._send(chosen.ids, slot)[: layout.capacity.graphs]
        tensors = CollatedTensors(self._store, ids, layout, lease)
        objects = self._store.host.objects_of(chosen.ids)
        return StaticBatch(layout, tensors, real, lease, objects)

    def _send(self, ids: IntArray, slot: Slot) -> Tensor:
        """``[most]`` int32 on the device: these ids, then -1. The present stream waits for it."""
        turn, self._turn = self._turn, (self._turn + 1) % STAGED
        staged = self._staged[turn]
        if self._cuda:
            self._copied[turn].synchronize()  # returns at once where none was recorded yet
        staged[: len(ids)] = torch.from_numpy(ids.astype(np.int32))
        staged[len(ids) :] = -1
        made = slot not in self._of_slot
        if made:
            self._of_slot[slot] = torch.empty_like(staged, device=self._store.device)
        target = self._of_slot[slot]
        if self._stream is None:
            return target.copy_(staged)
        if made:  # torch may have given memory that queued work of the present stream still reads
            self._stream.wait_stream(torch.cuda.current_stream(self._store.device))
        if slot.released is not None:
            self._stream.wait_event(slot.released)
        with torch.cuda.stream(self._stream):
            target.copy_(staged, non_blocking=True)
            self._copied[turn].record(self._stream)
        torch.cuda.current_stream(self._store.device).wait_stream(self._stream)
        return target
