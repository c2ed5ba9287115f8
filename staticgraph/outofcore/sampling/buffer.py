"""The buffer of partitions: fixed memory, and one background thread for all disk access.

Problem: a swap reads partitions and writes others back, and training should wait for neither. Idea:
one thread does all reading and writing, in the order of requests. While a state trains, the
partitions that only the next state needs are read into spare slots, and its graph is built; when
the state ends, the partitions that leave are written while the next state already trains. Since
there is a single queue, a partition that leaves and soon returns is read after it was written,
without further locking. Invariant: a row's values are accessed only by the trainer while it is
resident, and only by the thread otherwise, so no gradient is ever stale.

Rows are places in the buffer, not nodes of the whole graph; a row without a resident node has no
neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.disk.embeddings import EmbeddingFile
from staticgraph.outofcore.disk.graph import Direction, PartitionedGraph
from staticgraph.outofcore.policies.policy import Cell, Schedule, State
from staticgraph.outofcore.sampling.dense import Neighbours
from staticgraph.sizes.whole_numbers import IntArray


@dataclass(eq=False)
class ResidentGraph:
    """One state of the buffer.

    Args:
        graph, number, state: the graph, the state's number, and what is resident and trained on.
        slot_of: ``[p]``; the slot of each partition, -1 if it is not resident.
        values: ``[rows, F]`` the buffer's features or embeddings.
        direction: the direction of the neighbours; None if nothing is sampled.

    Attributes:
        edges: ``[n, 2 or 3]`` edges to train on, as rows (none in training on nodes).
        neighbours: the neighbours of each row, over all edges between resident partitions; empty
            without a direction.
        node_of: ``[rows]`` the graph's node in each row, -1 if the row is unused.
    """

    graph: PartitionedGraph
    number: int
    state: State
    slot_of: IntArray
    values: NDArray[Any]
    direction: Direction | None

    def __post_init__(self) -> None:
        graph, resident, rows = self.graph, self.state.partitions, len(self.values)
        self.edges: NDArray[Any] = self._read(self.state.cells)
        firsts = [(k * graph.partition_size, graph.nodes_of(k)) for k in resident]
        self._nodes = np.concatenate([np.arange(first, first + count) for first, count in firsts])
        self.node_of: IntArray = np.full(rows, -1, np.int64)
        self.node_of[self.rows(self._nodes)] = self._nodes
        self.neighbours: Neighbours = Neighbours(())
        if self.direction is not None:
            edges = self._read(product(resident, resident))
            self.neighbours = Neighbours.of(edges[:, 0], edges[:, -1], rows, self.direction)

    @cached_property
    def whole_degrees(self) -> IntArray:
        """``[rows]`` degrees in the whole graph, without self-loops, in the direction."""
        assert self.direction is not None
        degrees = np.zeros(len(self.values), np.int64)
        whole = self.graph.degrees(self.direction, loops=False)
        degrees[self.rows(self._nodes)] = whole[self._nodes]
        return degrees

    def rows(self, nodes: NDArray[Any]) -> IntArray:
        """Returns the rows of resident nodes, given as node numbers of the graph."""
        partitions, inside = np.divmod(nodes, self.graph.partition_size)
        return self.slot_of[partitions] * self.graph.partition_size + inside

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draws the rows of resident nodes uniformly; the nodes do not depend on their slots."""
        return self.rows(self._nodes[rng.integers(len(self._nodes), size=count)])

    def _read(self, cells: Iterable[Cell]) -> NDArray[Any]:
        """Returns ``[n, 2 or 3]``: the edges of resident cells, as rows."""
        edges = self.graph.read_cells(cells)
        for end in (0, -1):
            edges[:, end] = self.rows(edges[:, end])
        return edges


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
    """Slots for the features or the embeddings of partitions, as many as a schedule needs.

    Args:
        graph: the graph whose edges are read.
        direction: the direction of the neighbours to sample; None if nothing is sampled.
        embeddings: the embeddings whose partitions pass through the buffer; None for the features
            of the graph, which never change.
        features: read the features, if the graph has any.

    Attributes:
        values: ``[rows, F]``; the row is ``slot * partition_size + offset``.
        sums: ``[rows, F]`` Adagrad sums of the values; no columns for features.
        mutable: whether training changes the values, so that a batch's must be read when its turn
            comes.
        waited_s: seconds that training waited for the thread.
        times: the times of the states of the last run.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        direction: Direction | None = "in",
        embeddings: EmbeddingFile | None = None,
        *,
        features: bool = True,
    ) -> None:
        self._graph, self._size = graph, graph.partition_size
        self._embeddings = embeddings
        self._direction: Direction | None = direction
        self.mutable: bool = embeddings is not None
        dtype, width = (graph.manifest.features if features else None) or ("float32", 0)
        if embeddings is not None:
            dtype, width = "float32", embeddings.dimension
        self.values: NDArray[Any] = np.empty((0, width), dtype)
        self.sums: NDArray[np.float32] = np.empty((0, width * self.mutable), np.float32)
        self._slot_of = np.full(graph.num_partitions, -1, dtype=np.int64)
        self._free: list[int] = []
        self._writing: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, "staticgraph-partitions")
        self.waited_s: float = 0.0
        self.times: list[StateTime] = []

    @property
    def width(self) -> int:
        """Values per row."""
        return self.values.shape[1]

    def run(self, schedule: Schedule) -> Iterator[ResidentGraph]:
        """Loads the states of a schedule and yields them one by one; the caller trains on each.

        What training changed is written when the last state ends; nothing is committed.
        """
        entering, states = schedule.entering(), schedule.states
        # Partitions are read ahead while others are still to be written.
        spare = (1 + self.mutable) * max(map(len, entering[1:]), default=0)
        rows = (max(len(state.partitions) for state in states) + spare) * self._size
        if len(self.values) < rows:
            # Rows are needed even without features: they are the places of the buffer.
            self.values = np.zeros((rows, self.width), self.values.dtype)
            self.sums = np.zeros((rows, self.sums.shape[1]), np.float32)
        self.abandon()
        coming = self._request(0, states[0], entering[0])
        started, self.times = time.perf_counter(), []
        for number, state in enumerate(states):
            requested_s = time.perf_counter() - started
            resident = self._wait(coming)
            self._slot_of = resident.slot_of
            staying: tuple[int, ...] = ()
            if number + 1 < len(states):
                staying = states[number + 1].partitions
                coming = self._request(number + 1, states[number + 1], entering[number + 1])
            began_s = time.perf_counter() - started
            yield resident
            times = requested_s, began_s, time.perf_counter() - started
            self.times.append(StateTime(state.partitions, entering[number], *times))
            self._release([k for k in state.partitions if k not in staying])
        while self._writing:
            self._wait(self._writing.pop(0))

    def abandon(self) -> None:
        """Discards all resident partitions, after waiting for pending reads and writes."""
        self._thread.submit(lambda: None).result()
        self._writing.clear()
        self._slot_of = np.full_like(self._slot_of, -1)
        self._free = list(range(len(self.values) // self._size))

    def close(self) -> None:
        """Waits for pending reads and writes and ends the thread."""
        self._thread.shutdown(wait=True)

    def _release(self, partitions: Sequence[int]) -> None:
        """Gives the slots of partitions back; the thread writes them before it reads others."""
        while self._writing and self._writing[0].done():
            self._writing.pop(0).result()
        for partition in partitions:
            slot = int(self._slot_of[partition])
            self._free.append(slot)
            if self._embeddings is not None:
                rows = self._rows_of(slot)
                arguments = partition, self.values[rows], self.sums[rows]
                self._writing.append(self._thread.submit(self._embeddings.write, *arguments))

    def _request(self, number: int, state: State, entering: Sequence[int]) -> Future[ResidentGraph]:
        """Requests a state: its partitions that enter get free slots."""
        slot_of = np.full_like(self._slot_of, -1)
        resident = list(state.partitions)
        slot_of[resident] = self._slot_of[resident]
        for partition in entering:
            slot_of[partition] = self._free.pop(0)
        return self._thread.submit(self._load, number, state, entering, slot_of)

    def _load(
        self, number: int, state: State, entering: Sequence[int], slot_of: IntArray
    ) -> ResidentGraph:
        """Reads the partitions that enter, and the graph of their state, in the thread."""
        for partition in entering:
            rows = self._rows_of(slot_of[partition])
            if self._embeddings is not None:
                self._embeddings.read(partition, self.values[rows], self.sums[rows])
            elif self.width:
                self._graph.read_features(partition, self.values[rows])
        return ResidentGraph(self._graph, number, state, slot_of, self.values, self._direction)

    def _rows_of(self, slot: int) -> slice:
        return slice(slot * self._size, (slot + 1) * self._size)

    def _wait(self, future: Future[Any]) -> Any:
        started = time.perf_counter()
        try:
            return future.result()
        finally:
            self.waited_s += time.perf_counter() - started
