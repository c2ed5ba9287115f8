"""The resident part of the graph in each state of the buffer, for sampling and training.

Rows are places in the buffer, not nodes of the whole graph; a row without a resident node has no
neighbours. With direction ``both``, the sources of a row's incoming edges and the destinations of
its outgoing edges are kept separately.

:class:`ResidentGraphs` is the buffer for read-only partitions: features never change, so nothing is
written back. While the current state trains, a thread reads the partitions that enter with the next
state and builds its row pointers. It reads into slots that the current state does not use, and
every state has its own row pointers, so the two never write to the same memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop
from staticgraph.outofcore.buffer.timeline import StateTime
from staticgraph.outofcore.disk.graph import Direction, PartitionedGraph
from staticgraph.outofcore.policies.schedule import NodeSchedule, NodeState, Schedule, State

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Neighbours by row.

    Attributes:
        pointers: one ``[rows + 1]`` per direction (incoming first).
        indices: one ``[edges]`` per direction, int32 rows.
    """

    pointers: tuple[IntArray, ...]
    indices: tuple[NDArray[np.int32], ...]

    @classmethod
    def of(
        cls, source: NDArray[Any], destination: NDArray[Any], rows: int, direction: Direction = "in"
    ) -> Neighbours:
        """Groups edges, given as rows ``[e]`` and ``[e]``, by row; linear time, input order kept.

        Raises:
            ValueError: if the direction is unknown.
        """
        ways = {
            "in": ((destination, source),),
            "out": ((source, destination),),
            "both": ((destination, source), (source, destination)),
        }
        if direction not in ways:
            raise ValueError(f"direction={direction!r}; choose one of {', '.join(ways)}")
        pointers, indices = [], []
        for keys, values in ways[direction]:
            pointer = np.zeros(rows + 1, np.int64)
            ordered = np.empty(len(keys), np.int32)
            _group(np.ascontiguousarray(keys), np.ascontiguousarray(values), pointer, ordered)
            pointers.append(pointer)
            indices.append(ordered)
        return cls(tuple(pointers), tuple(indices))

    @property
    def rows(self) -> int:
        """Number of rows of the buffer."""
        return len(self.pointers[0]) - 1

    def degrees(self, *, loops: bool = True) -> IntArray:
        """Returns ``[rows]`` degrees over all directions; without self-loops if not ``loops``."""
        total = np.zeros(self.rows, np.int64)
        for pointer, neighbours in zip(self.pointers, self.indices, strict=True):
            total += np.diff(pointer)
            if not loops:
                _without_loops(pointer, neighbours, total)
        return total


class ResidentGraph:
    """One state of the buffer.

    Args:
        graph: the graph.
        number: the state's number.
        state: what is resident and trained on.
        slot_of: ``[p]``; the slot of each partition, -1 if it is not resident.
        values: ``[rows, F]`` the buffer's features or embeddings.
        direction: the direction of the neighbours; None if nothing is sampled.

    Attributes:
        partitions: the resident partitions, ascending.
        train: the partitions whose nodes are trained on in this state (empty in an edge schedule).
        edges: ``[n, 2 or 3]`` edges to train on, as rows (empty in a node schedule).
        neighbours: the neighbours of each row, over all edges between resident partitions; None
            without a direction.
        degrees: ``[rows]`` degrees in ``neighbours``, without self-loops.
        whole_degrees: ``[rows]`` degrees in the whole graph, without self-loops.
        node_of: ``[rows]`` the graph's node in each row, -1 if the row is unused.
    """

    graph: PartitionedGraph
    number: int
    partitions: tuple[int, ...]
    slot_of: IntArray
    values: NDArray[Any]

    __slots__ = (
        "_firsts", "degrees", "edges", "graph", "neighbours", "node_of", "number", "partitions",
        "slot_of", "train", "values", "whole_degrees",
    )  # fmt: skip

    def __init__(
        self,
        graph: PartitionedGraph,
        number: int,
        state: State | NodeState,
        slot_of: IntArray,
        values: NDArray[Any],
        direction: Direction | None,
    ) -> None:
        size, self.graph, self.number = graph.partition_size, graph, number
        self.partitions, self.slot_of, self.values = state.partitions, slot_of, values
        self.train: tuple[int, ...] = state.train if isinstance(state, NodeState) else ()
        counts = [graph.nodes_of(partition) for partition in state.partitions]
        self._firsts = np.concatenate([[0], np.cumsum(counts)])
        self.edges: NDArray[Any] = np.empty((0, graph.columns), graph.dtype)
        if isinstance(state, State):
            self.edges = self._in_rows(graph.read_cells(state.cells))
        self.node_of: IntArray = np.full(len(values), -1, np.int64)
        self.whole_degrees: IntArray = np.zeros(len(values), np.int64)
        for partition, count in zip(state.partitions, counts, strict=True):
            low, first = int(slot_of[partition]) * size, partition * size
            self.node_of[low : low + count] = np.arange(first, first + count)
            if direction is not None:
                degrees = graph.degrees(direction, loops=False)[first : first + count]
                self.whole_degrees[low : low + count] = degrees
        self.neighbours: Neighbours | None = None
        self.degrees: IntArray = self.whole_degrees
        if direction is not None:
            pairs = [(i, j) for i in state.partitions for j in state.partitions]
            edges = self._in_rows(graph.read_cells(pairs))
            self.neighbours = Neighbours.of(edges[:, 0], edges[:, -1], len(values), direction)
            self.degrees = self.neighbours.degrees(loops=False)

    def rows(self, nodes: NDArray[Any]) -> IntArray:
        """Returns the rows of resident nodes, given as node numbers of the graph."""
        partitions, inside = np.divmod(nodes, self.graph.partition_size)
        return self.slot_of[partitions] * self.graph.partition_size + inside

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draws the rows of resident nodes uniformly; the nodes do not depend on their slots."""
        drawn = rng.integers(self._firsts[-1], size=count)
        which = np.searchsorted(self._firsts, drawn, side="right") - 1
        slots = self.slot_of[np.asarray(self.partitions)[which]]
        return slots * self.graph.partition_size + drawn - self._firsts[which]

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
    def width(self) -> int:
        """Values per row; 0 without features."""
        return 0 if self._width is None else self._width[1]

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
            requested = started - begun
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
            self.times.append(
                StateTime(state.partitions, entering[number], requested, began, ended)
            )

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
def _group(keys, values, pointers, ordered):
    for e in range(len(keys)):
        pointers[keys[e] + 1] += 1
    for v in range(len(pointers) - 1):
        pointers[v + 1] += pointers[v]
    at = pointers[:-1].copy()
    for e in range(len(keys)):
        ordered[at[keys[e]]] = values[e]
        at[keys[e]] += 1


@loop
def _without_loops(pointers, indices, total):
    for v in range(len(total)):
        for e in range(pointers[v], pointers[v + 1]):
            total[v] -= indices[e] == v


@loop
def _renumber(edges, slot_of, size):
    last = edges.shape[1] - 1
    for e in range(edges.shape[0]):
        for end in (0, last):
            node = edges[e, end]
            edges[e, end] = slot_of[node // size] * size + node % size
