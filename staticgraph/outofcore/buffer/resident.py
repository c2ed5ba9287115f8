"""Read-only partitions passing through a fixed buffer: features, and who neighbours whom.

Features never change, so nothing is written back and the next state's partitions are read, and its
row pointers built, by a thread while the present state trains. A state is made of slots that the
present one does not use, and of row pointers of its own, so the two never touch the same memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.buffer.timeline import StateTime
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.neighbours import Direction, Neighbours
from staticgraph.outofcore.policies.schedule import NodeSchedule, NodeState, Schedule, State


class ResidentGraph:
    """What sampling sees in one state.

    Attributes:
        number: of the state.
        partitions: resident, ascending.
        slot_of: ``[p]``; the slot of each partition, -1 where it is not resident.
        train: partitions whose nodes are trained on here (none in a schedule of edges).
        edges: ``[n, 2 or 3]`` to train on, in rows (none in a schedule of nodes).
        neighbours: of the buffer's rows, over every edge between resident partitions.
        degrees: ``[rows]`` of ``neighbours``, self-loops not counted.
        whole_degrees: ``[rows]`` the same in the whole graph.
        features: ``[rows, F]``.
        node_of: ``[rows]`` the graph's node in each row, -1 where there is none.
    """

    graph: PartitionedGraph
    number: int
    partitions: tuple[int, ...]
    slot_of: NDArray[np.int64]
    features: NDArray[Any]

    __slots__ = (
        "degrees", "edges", "features", "graph", "neighbours", "node_of", "number", "partitions",
        "slot_of", "train", "whole_degrees",
    )  # fmt: skip

    def __init__(
        self,
        graph: PartitionedGraph,
        number: int,
        state: State | NodeState,
        slot_of: NDArray[np.int64],
        features: NDArray[Any],
        direction: Direction,
    ) -> None:
        size, self.graph, self.number = graph.partition_size, graph, number
        self.partitions, self.slot_of, self.features = state.partitions, slot_of, features
        self.train: tuple[int, ...] = state.train if isinstance(state, NodeState) else ()
        pairs = [(i, j) for i in state.partitions for j in state.partitions]
        every = self._in_rows(graph.read_cells(pairs))
        self.neighbours: Neighbours = Neighbours.of(
            every[:, 0], every[:, -1], len(features), direction
        )
        self.degrees: NDArray[np.int64] = self.neighbours.degrees(loops=False)
        self.whole_degrees: NDArray[np.int64] = np.zeros(len(features), np.int64)
        self.edges: NDArray[Any] = np.empty((0, graph.columns), graph.dtype)
        if isinstance(state, State):
            self.edges = self._in_rows(graph.read_cells(state.cells))
        self.node_of: NDArray[np.int64] = np.full(len(features), -1, np.int64)
        for partition in state.partitions:
            count, low = graph.nodes_of(partition), int(slot_of[partition]) * size
            first = partition * size
            self.node_of[low : low + count] = np.arange(first, first + count)
            here = graph.degrees(direction, loops=False)[first : first + count]
            self.whole_degrees[low : low + count] = here

    def rows(self, nodes: NDArray[Any]) -> NDArray[np.int64]:
        """Rows of resident nodes (in the graph's numbers)."""
        partitions, inside = np.divmod(nodes, self.graph.partition_size)
        return self.slot_of[partitions] * self.graph.partition_size + inside

    def _in_rows(self, edges: NDArray[Any]) -> NDArray[Any]:
        _renumber(edges, self.slot_of, self.graph.partition_size)
        return edges


class ResidentGraphs:
    """States of a schedule, one after the other, the next one prepared while one is used.

    Args:
        graph: with or without features.
        direction: of the neighbours.
        features: read the features, where the graph has any.

    Attributes:
        waited_s: seconds that the user of the states waited for reading.
        partitions_read: so far.
        times: of the states of the last run.
    """

    waited_s: float
    partitions_read: int

    # Nothing is written back, so a state may be left while its batches are still in use.
    mutable = False

    def __init__(
        self, graph: PartitionedGraph, direction: Direction = "in", *, features: bool = True
    ) -> None:
        self.graph = graph
        self._width = graph.manifest.features if features else None
        self.direction: Direction = direction
        self.waited_s, self.partitions_read = 0.0, 0
        self.times: list[StateTime] = []
        self._features: NDArray[Any] = np.empty((0, 0), np.float32)
        self._thread = ThreadPoolExecutor(1, "staticgraph-features")

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer of features."""
        return self._features.nbytes

    def run(self, schedule: Schedule | NodeSchedule) -> Iterator[ResidentGraph]:
        """Brings the states in one by one."""
        entering, states = schedule.entering(), schedule.states
        spare = max((len(partitions) for partitions in entering[1:]), default=0)
        self._reserve(max(len(state.partitions) for state in states) + spare)
        slots = len(self._features) // self.graph.partition_size
        slot_of = np.full(self.graph.num_partitions, -1, dtype=np.int64)
        coming: Future[ResidentGraph] | None = None
        begun, self.times = time.perf_counter(), []
        for number, state in enumerate(states):
            if coming is None:
                slot_of = self._assign(slot_of, state.partitions, entering[0], slots)
                coming = self._thread.submit(self._prepare, number, state, slot_of, entering[0])
            started = time.perf_counter()
            asked = started - begun
            resident = coming.result()
            self.waited_s += time.perf_counter() - started
            if number + 1 < len(states):
                following = states[number + 1]
                slot_of = self._assign(slot_of, following.partitions, entering[number + 1], slots)
                coming = self._thread.submit(
                    self._prepare, number + 1, following, slot_of, entering[number + 1]
                )
            began = time.perf_counter() - begun
            yield resident
            ended = time.perf_counter() - begun
            self.times.append(StateTime(state.partitions, entering[number], asked, began, ended))

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=True)

    def _reserve(self, slots: int) -> None:
        dtype, width = self._width or ("float32", 0)
        rows = slots * self.graph.partition_size
        if len(self._features) < rows:
            # Rows count even where there are no features: they are places of the buffer.
            self._features = np.zeros((rows, width), dtype)

    @staticmethod
    def _assign(
        before: NDArray[np.int64],
        partitions: tuple[int, ...],
        entering: tuple[int, ...],
        slots: int,
    ) -> NDArray[np.int64]:
        """Slots of a state: those that stay keep theirs, the others get free ones."""
        used = set(before[before >= 0].tolist())
        free = iter([slot for slot in range(slots) if slot not in used])
        after = np.full_like(before, -1)
        for partition in partitions:
            after[partition] = next(free) if partition in entering else before[partition]
        return after

    def _prepare(
        self,
        number: int,
        state: State | NodeState,
        slot_of: NDArray[np.int64],
        entering: tuple[int, ...],
    ) -> ResidentGraph:
        size = self.graph.partition_size
        if self._width is not None:
            for partition in entering:
                slot = int(slot_of[partition])
                self.graph.read_features(partition, self._features[slot * size : (slot + 1) * size])
        self.partitions_read += len(entering)
        return ResidentGraph(self.graph, number, state, slot_of, self._features, self.direction)


@numba.njit(cache=True, nogil=True)
def _renumber(edges, slot_of, size):
    last = edges.shape[1] - 1
    for e in range(edges.shape[0]):
        for end in (0, last):
            node = edges[e, end]
            edges[e, end] = slot_of[node // size] * size + node % size
