"""Recordings that fill a recorded step's input from the ids of a batch.

The problem: a recording reads its input where it always stands, so a batch that was made elsewhere
on the device is copied there first, some hundred kilobytes a step. The idea: where the graphs are
on the device, the batch is made at that place. What makes it is recorded as well, one recording a
bucket, and is replayed before the step on the same stream; its only input are the ids, ``[G]``
int32 at an address of their own.

It stands beside the recordings of the steps, not inside them, so that one recording of a step
serves batches of every origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from staticgraph.batches.collate_arguments import collate_arguments
from staticgraph.batches.from_device import CollatedTensors
from staticgraph.batches.static_batch import StaticBatch
from staticgraph.kernels.collate import collate
from staticgraph.recording.recorder import Recorded, Recorder
from staticgraph.recording.replays import Replays
from staticgraph.store.on_device import DeviceStore


class RecordedCollation:
    """Fills input slots from one store.

    Args:
        store: the graphs.
        inputs: of each bucket, the batch whose arrays a step reads.
        recorder: of the steps, with which it shares pool and stream.
        replays: of the steps, which count these as well.

    Raises:
        ValueError: the steps read row pointers, and the store was moved without.
    """

    def __init__(
        self,
        store: DeviceStore,
        inputs: Mapping[int, StaticBatch],
        recorder: Recorder,
        replays: Replays | None = None,
    ) -> None:
        self._store = store
        self._replays = Replays() if replays is None else replays
        most = max(batch.num_graphs for batch in inputs.values())
        self._ids = torch.full((most,), -1, dtype=torch.int32, device=store.device)
        self._recordings: dict[int, Recorded] = {}
        for bucket, batch in inputs.items():
            ids = self._ids[: batch.num_graphs]
            body = partial(collate, ids, collate_arguments(store, batch.layout, batch.tensors()))
            recorder.warm(body, 1)  # compiles the kernels
            self._recordings[bucket] = recorder.record(body)

    def fill(self, bucket: int, batch: CollatedTensors) -> bool:
        """Makes a batch in the input of its bucket; False where it is of another store."""
        if batch.store is not self._store:
            return False
        batch.check()
        self._send(batch)
        self._replays.run(self._recordings[bucket])
        return True

    def _send(self, batch: CollatedTensors) -> None:
        self._ids[: len(batch.ids)].copy_(batch.ids, non_blocking=True)
