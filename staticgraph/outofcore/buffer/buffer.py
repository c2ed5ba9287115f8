"""Fixed buffers for partitions, each with one background thread for all disk access.

Problem: a swap reads partitions and writes others back, and training should wait for neither. Idea:
one thread does all reading and writing, in the order of requests. While a state trains, the
partitions that only the next state needs are read into spare slots, and the graph of the next state
is built; when the state ends, the partitions that leave are written while the next state already
trains. Since there is a single queue, a partition that leaves and soon returns is read after it was
written, without further locking. Invariant: memory is allocated once; a row's values are accessed
only by the trainer while it is resident, and only by the thread otherwise, so no gradient is ever
stale.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.buffer.resident_graph import ResidentGraph
from staticgraph.outofcore.disk.embeddings import EmbeddingFile, FloatArray
from staticgraph.outofcore.disk.graph import Direction, PartitionedGraph
from staticgraph.outofcore.policies.schedule import Schedule, State


@dataclass(frozen=True, slots=True)
class StateTime:
    """The times of one state of the buffer, in seconds since the epoch began.

    Attributes:
        partitions: the resident partitions.
        entered: those of them that were read for this state.
        asked_s: when training requested the state.
        began_s: when training received it; the difference is waiting time.
        ended_s: when training on it ended.
    """

    partitions: tuple[int, ...]
    entered: tuple[int, ...]
    asked_s: float
    began_s: float
    ended_s: float


class PartitionBuffer:
    """Slots for partitions that are only read; the base of all buffers.

    Args:
        graph: the graph whose edges are read.
        values: ``[rows, F]``; the row is ``slot * partition_size + offset``.
        direction: the direction of the neighbours to sample; None if nothing is sampled.

    Attributes:
        waited_s: seconds that training waited for the thread.
        partitions_read: the number of partitions read so far.
        times: the times of the states of the last run.
    """

    # Whether training changes the values, so that a batch's must be read when its turn comes.
    mutable = False

    def __init__(
        self, graph: PartitionedGraph, values: NDArray[Any], direction: Direction | None
    ) -> None:
        self._graph, self._size = graph, graph.partition_size
        self.values: NDArray[Any] = values
        self._direction: Direction | None = direction
        self._slot_of = np.full(graph.num_partitions, -1, dtype=np.int64)
        self._free: list[int] = []
        self._writing: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, "staticgraph-partitions")
        self.waited_s: float = 0.0
        self.partitions_read: int = 0
        self.times: list[StateTime] = []

    @property
    def width(self) -> int:
        """Values per row."""
        return self.values.shape[1]

    def run(self, schedule: Schedule) -> Iterator[ResidentGraph]:
        """Loads the states of a schedule and yields them one by one; the caller trains on each.

        What training changed is written when the last state ends; nothing is committed.
        """
        self.abandon()
        entering, states = schedule.entering(), schedule.states
        reads = self._request(entering[0])
        coming = self._prepare(0, states[0], reads)
        started, self.times = time.perf_counter(), []
        for number, state in enumerate(states):
            requested_s = time.perf_counter() - started
            resident = self._wait(coming)
            for slot, partition, read in reads:
                self._wait(read)
                self._slot_of[partition] = slot
            following = states[number + 1 : number + 2]
            for next_state in following:
                reads = self._request(entering[number + 1])
                coming = self._prepare(number + 1, next_state, reads)
            began_s = time.perf_counter() - started
            self.partitions_read += len(entering[number])
            yield resident
            times = requested_s, began_s, time.perf_counter() - started
            self.times.append(StateTime(state.partitions, entering[number], *times))
            staying = {k for next_state in following for k in next_state.partitions}
            self._release([k for k in state.partitions if k not in staying])
        while self._writing:
            self._wait(self._writing.pop(0))

    def abandon(self) -> None:
        """Discards all resident partitions, after waiting for pending reads and writes."""
        self._thread.submit(lambda: None).result()
        self._writing.clear()
        self._slot_of[:] = -1
        self._free = list(range(len(self.values) // self._size))

    def close(self) -> None:
        """Waits for pending reads and writes and ends the thread."""
        self._thread.shutdown(wait=True)

    def _read(self, partition: int, rows: slice) -> None:
        """Reads a partition's values, in the thread."""
        raise NotImplementedError

    def _write(self, partition: int, rows: slice) -> None:
        """Writes a partition's values, in the thread; only where they are mutable."""
        raise NotImplementedError

    def _release(self, partitions: Sequence[int]) -> None:
        """Gives the slots of partitions back; the thread writes them before it reads others."""
        while self._writing and self._writing[0].done():
            self._writing.pop(0).result()
        for partition in partitions:
            slot = int(self._slot_of[partition])
            self._slot_of[partition] = -1
            self._free.append(slot)
            if self.mutable:
                write = self._thread.submit(self._write, partition, self._rows_of(slot))
                self._writing.append(write)

    def _request(self, partitions: Sequence[int]) -> list[tuple[int, int, Future[None]]]:
        """Requests that partitions are read into free slots."""
        reads = []
        for partition in partitions:
            slot = self._free.pop(0)
            read = self._thread.submit(self._read, partition, self._rows_of(slot))
            reads.append((slot, partition, read))
        return reads

    def _prepare(
        self, number: int, state: State, reads: list[tuple[int, int, Future[None]]]
    ) -> Future[ResidentGraph]:
        """Requests the graph of a state, given the slots that its new partitions are read into."""
        slot_of = self._slot_of.copy()
        for slot, partition, _ in reads:
            slot_of[partition] = slot
        return self._thread.submit(
            ResidentGraph, self._graph, number, state, slot_of, self.values, self._direction
        )

    def _rows_of(self, slot: int) -> slice:
        return slice(slot * self._size, (slot + 1) * self._size)

    def _wait(self, future: Future[Any]) -> Any:
        started = time.perf_counter()
        try:
            return future.result()
        finally:
            self.waited_s += time.perf_counter() - started


class FeatureBuffer(PartitionBuffer):
    """The features of the resident partitions, which never change; as large as schedules need.

    Args:
        graph: the graph, with or without features.
        direction: the direction of the neighbours.
        features: read the features, if the graph has any.
    """

    def __init__(
        self, graph: PartitionedGraph, direction: Direction = "in", *, features: bool = True
    ) -> None:
        dtype, width = (graph.manifest.features if features else None) or ("float32", 0)
        super().__init__(graph, np.empty((0, width), dtype), direction)

    def run(self, schedule: Schedule) -> Iterator[ResidentGraph]:
        """As :meth:`PartitionBuffer.run`."""
        spare = max((len(partitions) for partitions in schedule.entering()[1:]), default=0)
        slots = max(len(state.partitions) for state in schedule.states) + spare
        if len(self.values) < slots * self._size:
            # Rows are needed even without features: they are the places of the buffer.
            self.values: NDArray[Any] = np.zeros(
                (slots * self._size, self.width), self.values.dtype
            )
        return super().run(schedule)

    def _read(self, partition: int, rows: slice) -> None:
        if self.width:
            self._graph.read_features(partition, self.values[rows])


class EmbeddingBuffer(PartitionBuffer):
    """The values and Adagrad sums of the resident partitions.

    Args:
        graph: the graph whose edges are read.
        file: the embeddings whose partitions pass through the buffer.
        slots: partitions per state.
        group: partitions that are swapped together; the buffer has spare slots for two groups,
            unless all partitions fit.
        direction: the direction of the neighbours to sample; None if nothing is sampled.

    Attributes:
        sums: ``[rows, D]`` Adagrad sums of the values.
    """

    mutable = True

    def __init__(
        self,
        graph: PartitionedGraph,
        file: EmbeddingFile,
        slots: int,
        group: int,
        direction: Direction | None = None,
    ) -> None:
        p, size = graph.num_partitions, graph.partition_size
        count = slots if slots >= p else slots + 2 * group
        super().__init__(graph, np.zeros((count * size, file.dimension), np.float32), direction)
        self._file = file
        self.sums: FloatArray = np.zeros_like(self.values)

    def _read(self, partition: int, rows: slice) -> None:
        self._file.read(partition, self.values[rows], self.sums[rows])

    def _write(self, partition: int, rows: slice) -> None:
        self._file.write(partition, self.values[rows], self.sums[rows])
