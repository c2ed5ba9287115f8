"""How a recorded step's input is filled from the ids of a batch.

The problem: a recording reads its input at fixed addresses, so a batch that was made elsewhere on
the device is first copied there, some hundred kilobytes per step. The idea: if the graphs are on
the device, the batch is made directly in that place, by work that is recorded as well. Its only
inputs are the ids, ``[G]`` int32 at their own address, which the host writes directly.

That work comes first in a recording of the whole step, so that going from ids to an update is a
single launch. If the step's own recording is to serve batches of every origin, the work instead has
one recording per bucket, replayed before the step on the same stream; likewise for a forward whose
backward is another recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.collation.collate_arguments import collate_arguments
from staticgraph.batches.loading.from_device import CollatedTensors
from staticgraph.kernels.collate import collate
from staticgraph.recording.recorder import Recorded, Recorder
from staticgraph.recording.replays import Replays
from staticgraph.store.on_device import DeviceStore


class RecordedCollation:
    """Fills input slots from one store.

    Args:
        store: the graphs.
        inputs: for each bucket, the batch whose arrays a step reads.
        replays: the counter of the steps' replays, which counts these as well.

    Attributes:
        store: the graphs.

    Raises:
        ValueError: the steps read row pointers, and the store was moved to the device without them.
    """

    def __init__(
        self, store: DeviceStore, inputs: Mapping[int, StaticBatch], replays: Replays | None = None
    ) -> None:
        self.store = store
        self._replays = Replays() if replays is None else replays
        most = max(batch.num_graphs for batch in inputs.values())
        self._ids = torch.full((most,), -1, dtype=torch.int32, device=store.device)
        self._of_bucket = {b: self._ids[: batch.num_graphs] for b, batch in inputs.items()}
        self._bodies = {
            bucket: partial(
                collate,
                self._of_bucket[bucket],
                collate_arguments(store, batch.layout, batch.tensors()),
            )
            for bucket, batch in inputs.items()
        }
        self._recordings: dict[int, Recorded] = {}

    def body(self, bucket: int) -> Callable[[], None]:
        """Returns the function that makes a bucket's input from the ids currently in its slot."""
        return self._bodies[bucket]

    def clear(self) -> None:
        """Sets the ids to those of a batch of padding alone."""
        self._ids.fill_(-1)

    def record(self, recorder: Recorder, only: int | None = None) -> None:
        """Makes a recording for every bucket, or only for one, in the pool of the steps."""
        for bucket, body in self._bodies.items():
            if bucket in self._recordings or only not in (None, bucket):
                continue
            recorder.warm(body, 1)  # compiles the kernels
            self._recordings[bucket] = recorder.record(body)

    def send(self, bucket: int, batch: CollatedTensors) -> None:
        """Writes a batch's ids to where they are read.

        Raises:
            StaleBatch: the batch was given back.
        """
        batch.send_ids(self._of_bucket[bucket])

    def fill(self, bucket: int, batch: CollatedTensors) -> bool:
        """Makes a batch in its bucket's input, by the bucket's own recording.

        Returns False if the batch is of another store, or there is no such recording.
        """
        if batch.store is not self.store or bucket not in self._recordings:
            return False
        self.send(bucket, batch)
        self._replays.run(self._recordings[bucket])
        return True
