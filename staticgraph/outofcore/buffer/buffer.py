"""The fixed buffer for partitions of embeddings, with one background thread for all disk access.

Problem: a swap writes partitions back and reads others, and training should wait for neither. Idea:
one thread does all reading and writing, in the order of requests. While a state trains, the
partitions that only the next state needs are read into spare slots; when the state ends, the
partitions that leave are written while the next state already trains. Since there is a single
queue, a partition that leaves and soon returns is read after it was written, without further
locking. Invariant: memory is ``slots + 2 * group`` records, allocated once (one record per
partition if all fit); a row's values are accessed only by the trainer while it is resident, and
only by the thread otherwise, so no gradient is ever stale.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from staticgraph.outofcore.buffer.resident import ResidentGraph
from staticgraph.outofcore.buffer.timeline import StateTime
from staticgraph.outofcore.disk.embeddings import EmbeddingFile, FloatArray
from staticgraph.outofcore.disk.graph import Direction, PartitionedGraph
from staticgraph.outofcore.policies.schedule import NodeSchedule, Schedule, State
from staticgraph.text.how_many import how_many


class EmbeddingBuffer:
    """The values and Adagrad sums of the resident partitions.

    Args:
        graph: the graph whose edges are read.
        file: the embeddings whose partitions pass through the buffer.
        slots: partitions per state.
        group: partitions that are swapped together; the buffer has spare slots for two groups.
        direction: the direction of the neighbours to sample; None if nothing is sampled.

    Attributes:
        values: ``[rows, D]``; the row is ``slot * partition_size + offset``.
        sums: ``[rows, D]`` Adagrad sums.
        waited_s: seconds that training waited for the thread.
        partitions_read: the number of partitions read so far.
        times: the times of the states of the last run.

    Raises:
        ValueError: if the graph and the file are partitioned differently.
    """

    # Training changes the values: a batch's must be read when its turn comes.
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
        if (file.num_partitions, file.partition_size) != (p, size):
            raise ValueError(
                f"{file.folder} has {how_many(file.num_partitions, 'partition')} of "
                f"{how_many(file.partition_size, 'node')}, {graph.folder} has {p} of {size}: they "
                "belong to different graphs"
            )
        self._graph, self._file, self._size = graph, file, size
        self._direction: Direction | None = direction
        count = slots if slots >= p else slots + 2 * group
        self.values: FloatArray = np.zeros((count * size, file.dimension), np.float32)
        self.sums: FloatArray = np.zeros_like(self.values)
        self._free = list(range(count))
        self._slot_of = np.full(p, -1, dtype=np.int64)
        self._writing: list[tuple[int, Future[None]]] = []
        self._thread = ThreadPoolExecutor(1, "staticgraph-partitions")
        self.waited_s: float = 0.0
        self.partitions_read: int = 0
        self.times: list[StateTime] = []

    @property
    def width(self) -> int:
        """Values per row."""
        return self.values.shape[1]

    def run(self, schedule: Schedule | NodeSchedule) -> Iterator[ResidentGraph]:
        """Loads the states of a schedule and yields them one by one; the caller trains on each.

        All partitions are written when the last state ends; nothing is committed.

        Raises:
            ValueError: if the schedule is one of nodes, since embeddings are trained on edges.
        """
        if isinstance(schedule, NodeSchedule):
            raise ValueError("embeddings are trained along edges: give the loader task='link'")
        entering = schedule.entering()
        states = schedule.states
        reads = self._request(entering[0])
        coming = self._prepare(0, states[0], reads)
        started, self.times = time.perf_counter(), []
        for number, state in enumerate(states):
            requested = time.perf_counter() - started
            resident = self._wait(coming)
            for slot, partition, read in reads:
                self._wait(read)
                self._slot_of[partition] = slot
            last = number + 1 == len(states)
            if not last:
                reads = self._request(entering[number + 1])
                coming = self._prepare(number + 1, states[number + 1], reads)
            began = time.perf_counter() - started
            self.partitions_read += len(entering[number])
            yield resident
            ended = time.perf_counter() - started
            self.times.append(
                StateTime(state.partitions, entering[number], requested, began, ended)
            )
            staying = set() if last else set(states[number + 1].partitions)
            self._release([k for k in state.partitions if k not in staying])
        self._drain(everything=True)
        self._free.sort()

    def abandon(self) -> None:
        """Discards all resident partitions, after waiting for pending reads and writes."""
        self._thread.submit(lambda: None).result()
        self._writing.clear()
        self._slot_of[:] = -1
        self._free = list(range(len(self.values) // self._size))

    def close(self) -> None:
        """Waits for pending reads and writes and ends the thread."""
        self._thread.shutdown(wait=True)

    def _request(self, partitions: Sequence[int]) -> list[tuple[int, int, Future[None]]]:
        """Requests that partitions are read into free slots."""
        reads = []
        for partition in partitions:
            if not self._free:
                self._drain(everything=False)
            slot = self._free.pop(0)
            rows = slice(slot * self._size, (slot + 1) * self._size)
            read = self._thread.submit(
                self._file.read, partition, self.values[rows], self.sums[rows]
            )
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

    def _release(self, partitions: Sequence[int]) -> None:
        """Requests that partitions are written; their slots become free when that is done."""
        for partition in partitions:
            slot = int(self._slot_of[partition])
            self._slot_of[partition] = -1
            rows = slice(slot * self._size, (slot + 1) * self._size)
            write = self._thread.submit(
                self._file.write, partition, self.values[rows], self.sums[rows]
            )
            self._writing.append((slot, write))

    def _drain(self, everything: bool) -> None:
        """Frees the slots of finished writes, waiting for one write or for all."""
        while self._writing:
            slot, write = self._writing.pop(0)
            self._wait(write)
            self._free.append(slot)
            if not everything:
                return

    def _wait(self, future: Future[Any]) -> Any:
        started = time.perf_counter()
        try:
            return future.result()
        finally:
            self.waited_s += time.perf_counter() - started
