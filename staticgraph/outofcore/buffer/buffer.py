"""The fixed buffer that partitions of embeddings pass through, one reader and writer beside it.

The problem: a swap writes partitions back and reads others, and training should not wait for
either. The idea: one thread does all reading and writing, in the order asked for. While a state
trains, the partitions that only the next one needs are read into spare slots; when the state ends,
those that leave are written from theirs while the next one trains already. Because the order is one
queue's, a partition that leaves and soon returns is read after it was written, without any further
locking. The invariant: memory is ``slots + 2 * group`` records, made once; a row's values are read
and written only by the trainer while resident, and only by the thread otherwise, so no gradient is
ever stale.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.buffer.resident import ResidentGraph
from staticgraph.outofcore.buffer.timeline import StateTime
from staticgraph.outofcore.disk.embeddings import EmbeddingFile, FloatArray
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.neighbours import Direction
from staticgraph.outofcore.policies.schedule import Schedule, State
from staticgraph.text.how_many import how_many


class ResidentState:
    """What one state of the buffer offers to training.

    Attributes:
        number: of the state.
        partitions: ascending.
        edges: ``[n, 2 or 3]`` of the cells to train on, nodes in the graph's numbers; in rows of
            the buffer where there is something around.
        slot_of: ``[p]``; the slot of each partition, -1 where it is not resident.
        around: what sampling sees, where the buffer knows a direction.
    """

    around: ResidentGraph | None
    graph: PartitionedGraph
    number: int
    partitions: tuple[int, ...]
    slot_of: NDArray[np.int64]
    edges: NDArray[Any]

    __slots__ = (
        "_first", "_total", "around", "edges", "graph", "number", "partitions", "slot_of",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        partitions: tuple[int, ...],
        edges: NDArray[Any],
        slot_of: NDArray[np.int64],
        graph: PartitionedGraph,
        around: ResidentGraph | None = None,
    ) -> None:
        self.number, self.partitions, self.edges = number, partitions, edges
        self.slot_of, self.graph, self.around = slot_of, graph, around
        counts = np.array([graph.nodes_of(partition) for partition in partitions])
        self._first = np.concatenate([[0], np.cumsum(counts)])
        self._total = int(counts.sum())

    def rows(self, nodes: NDArray[Any]) -> NDArray[np.int64]:
        """Rows of the buffer where these nodes' values stand."""
        size = self.graph.partition_size
        partitions, inside = np.divmod(nodes, size)
        return self.slot_of[partitions] * size + inside

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Uniformly drawn resident nodes; the same whichever slots they stand in."""
        drawn = rng.integers(self._total, size=shape)
        which = np.searchsorted(self._first, drawn, side="right") - 1
        nodes = np.asarray(self.partitions)[which] * self.graph.partition_size
        return nodes + drawn - self._first[which]


class EmbeddingBuffer:
    """Values and sums of the resident partitions.

    Args:
        graph: whose edges are read.
        file: whose partitions pass through.
        slots: partitions of a state.
        group: partitions that move together, for which there are two spare places.
        direction: of the neighbours that sampling sees; None where nothing is sampled.

    Attributes:
        values: ``[rows, D]``; row ``slot * partition_size + offset``.
        sums: ``[rows, D]`` Adagrad sums.
        waited_s: seconds that training waited for the thread.
        times: of the states of the last run.

    Raises:
        ValueError: graph and file are partitioned otherwise.
    """

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
        self.times: list[StateTime] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.values.nbytes + self.sums.nbytes

    def run(self, schedule: Schedule) -> Iterator[ResidentState]:
        """Brings the states in one by one; training happens between two of them.

        All partitions are written when the last state ends; nothing is committed.
        """
        entering = schedule.entering()
        states = schedule.states
        reads = self._request(entering[0])
        edges = self._ask(0, states[0], reads)
        started, self.times = time.perf_counter(), []
        for number, state in enumerate(states):
            asked = time.perf_counter() - started
            rows, around = self._wait(edges)
            for slot, partition, read in reads:
                self._wait(read)
                self._slot_of[partition] = slot
            last = number + 1 == len(states)
            if not last:
                reads = self._request(entering[number + 1])
                edges = self._ask(number + 1, states[number + 1], reads)
            began = time.perf_counter() - started
            yield ResidentState(number, state.partitions, rows, self._slot_of, self._graph, around)
            ended = time.perf_counter() - started
            self.times.append(StateTime(state.partitions, entering[number], asked, began, ended))
            kept = set() if last else set(states[number + 1].partitions)
            self._release([k for k in state.partitions if k not in kept])
        self._drain(everything=True)
        self._free.sort()

    def abandon(self) -> None:
        """Forgets what is resident, once nothing is under way any more."""
        self._thread.submit(lambda: None).result()
        self._writing.clear()
        self._slot_of[:] = -1
        self._free = list(range(len(self.values) // self._size))

    def close(self) -> None:
        """Waits for what is under way and ends the thread."""
        self._thread.shutdown(wait=True)

    def _request(self, partitions: Sequence[int]) -> list[tuple[int, int, Future[None]]]:
        """Asks for partitions to be read into free slots."""
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

    def _ask(
        self, number: int, state: State, reads: list[tuple[int, int, Future[None]]]
    ) -> Future[tuple[NDArray[Any], ResidentGraph | None]]:
        """Asks for the edges of a state, whose new partitions will stand where they are read to."""
        slot_of = self._slot_of.copy()
        for slot, partition, _ in reads:
            slot_of[partition] = slot

        def prepare() -> tuple[NDArray[Any], ResidentGraph | None]:
            """The edges of a state's cells, and what sampling sees around them."""
            if self._direction is None:
                return self._graph.read_cells(state.cells), None
            nothing = np.empty((len(self.values), 0), np.float32)
            around = ResidentGraph(self._graph, number, state, slot_of, nothing, self._direction)
            return around.edges, around

        return self._thread.submit(prepare)

    def _release(self, partitions: Sequence[int]) -> None:
        """Asks for partitions to be written; their slots are free once that is done."""
        for partition in partitions:
            slot = int(self._slot_of[partition])
            self._slot_of[partition] = -1
            rows = slice(slot * self._size, (slot + 1) * self._size)
            write = self._thread.submit(
                self._file.write, partition, self.values[rows], self.sums[rows]
            )
            self._writing.append((slot, write))

    def _drain(self, everything: bool) -> None:
        """Takes back the slots of finished writes; waits for one, or for all."""
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
