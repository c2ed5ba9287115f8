"""A fixed buffer for read-only partitions: features, and the graph between resident nodes.

Features never change, so nothing is written back. While the current state trains, a thread reads
the partitions that enter with the next state and builds its row pointers. It reads into slots that
the current state does not use, and every state has its own row pointers, so the two never write to
the same memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop
from staticgraph.outofcore.buffer.timeline import StateTime
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.neighbours import Direction, Neighbours
from staticgraph.outofcore.policies.schedule import NodeSchedule, NodeState, Schedule, State


class ResidentGraph:
    """The resident part of the graph in one state, for sampling.

    Attributes:
        number: the state's number.
        partitions: the resident partitions, ascending.
        slot_of: ``[p]``; the slot of each partition, -1 if it is not resident.
        train: the partitions whose nodes are trained on in this state (empty in an edge schedule).
        edges: ``[n, 2 or 3]`` edges to train on, as rows (empty in a node schedule).
        neighbours: the neighbours of each row, over all edges between resident partitions.
        degrees: ``[rows]`` degrees in ``neighbours``, without self-loops.
        whole_degrees: ``[rows]`` degrees in the whole graph, without self-loops.
        features: ``[rows, F]``.
        node_of: ``[rows]`` the graph's node in each row, -1 if the row is unused.
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
        """Returns the rows of resident nodes, given as node numbers of the graph."""
        partitions, inside = np.divmod(nodes, self.graph.partition_size)
        return self.slot_of[partitions] * self.graph.partition_size + inside

    def _in_rows(self, edges: NDArray[Any]) -> NDArray[Any]:
        _renumber(edges, self.slot_of, self.graph.partition_size)
        return edges


class ResidentGraphs:
    """The states of a schedule, each prepared while the one before is in use.

    Args:
        graph: the graph, with or without features.
        direction: the direction of the neighbours.
        features: read the features, if the graph has any.

    Attributes:
        waited_s: seconds that the consumer of the states waited for reading.
        partitions_read: the number of partitions read so far.
        times: the times of the states of the last run.
    """

    waited_s: float
    partitions_read: int

    # Nothing is written back, so the next state may begin while batches of this one are in use.
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
        """Loads the states of a schedule and yields them one by one."""
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
            # Rows are needed even without features: they are the places of the buffer.
            self._features = np.zeros((rows, width), dtype)

    @staticmethod
    def _assign(
        before: NDArray[np.int64],
        partitions: tuple[int, ...],
        entering: tuple[int, ...],
        slots: int,
    ) -> NDArray[np.int64]:
        """Assigns slots for a state: partitions that stay keep theirs, new ones get free slots."""
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


@loop
def _renumber(edges, slot_of, size):
    last = edges.shape[1] - 1
    for e in range(edges.shape[0]):
        for end in (0, last):
            node = edges[e, end]
            edges[e, end] = slot_of[node // size] * size + node % size
