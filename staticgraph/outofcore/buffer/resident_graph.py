"""The resident part of the graph in each state of the buffer, for sampling and training.

Rows are places in the buffer, not nodes of the whole graph; a row without a resident node has no
neighbours. With direction ``both``, the sources of a row's incoming edges and the destinations of
its outgoing edges are kept separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.disk.graph import ENDS, Direction, PartitionedGraph
from staticgraph.outofcore.policies.schedule import State
from staticgraph.store.columns import sort_by_key

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
        """Groups edges, given as rows ``[e]`` and ``[e]``, by row, in linear time and in order."""
        ends, pointers, indices = (source, destination), [], []
        for end in ENDS[direction]:
            order, pointer = sort_by_key(ends[end], rows)
            pointers.append(pointer)
            indices.append(np.asarray(ends[-1 - end], np.int32)[order])
        return cls(tuple(pointers), tuple(indices))

    @property
    def rows(self) -> int:
        """Number of rows of the buffer."""
        return len(self.pointers[0]) - 1

    def degrees(self) -> IntArray:
        """Returns ``[rows]`` degrees over all directions, without self-loops."""
        total = np.zeros(self.rows, np.int64)
        for pointer, neighbours in zip(self.pointers, self.indices, strict=True):
            row_of = np.repeat(np.arange(self.rows), np.diff(pointer))
            total += np.bincount(row_of[row_of != neighbours], minlength=self.rows)
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
        train: the partitions whose nodes are trained on in this state (none in training on edges).
        edges: ``[n, 2 or 3]`` edges to train on, as rows (none in training on nodes).
        neighbours: the neighbours of each row, over all edges between resident partitions; empty
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

    def __init__(
        self,
        graph: PartitionedGraph,
        number: int,
        state: State,
        slot_of: IntArray,
        values: NDArray[Any],
        direction: Direction | None,
    ) -> None:
        size, self.graph, self.number = graph.partition_size, graph, number
        self.partitions, self.slot_of, self.values = state.partitions, slot_of, values
        self.train: tuple[int, ...] = state.train
        self.edges: NDArray[Any] = self._in_rows(graph.read_cells(state.cells))
        firsts = [(partition * size, graph.nodes_of(partition)) for partition in state.partitions]
        self._nodes = np.concatenate([np.arange(first, first + count) for first, count in firsts])
        rows = self.rows(self._nodes)
        self.node_of: IntArray = np.full(len(values), -1, np.int64)
        self.node_of[rows] = self._nodes
        self.whole_degrees: IntArray = np.zeros(len(values), np.int64)
        if direction is not None:
            self.whole_degrees[rows] = graph.degrees(direction, loops=False)[self._nodes]
        self.neighbours: Neighbours = Neighbours((), ())
        self.degrees: IntArray = self.whole_degrees
        if direction is not None:
            pairs = [(i, j) for i in state.partitions for j in state.partitions]
            edges = self._in_rows(graph.read_cells(pairs))
            self.neighbours = Neighbours.of(edges[:, 0], edges[:, -1], len(values), direction)
            self.degrees = self.neighbours.degrees()

    def rows(self, nodes: NDArray[Any]) -> IntArray:
        """Returns the rows of resident nodes, given as node numbers of the graph."""
        partitions, inside = np.divmod(nodes, self.graph.partition_size)
        return self.slot_of[partitions] * self.graph.partition_size + inside

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draws the rows of resident nodes uniformly; the nodes do not depend on their slots."""
        return self.rows(self._nodes[rng.integers(len(self._nodes), size=count)])

    def _in_rows(self, edges: NDArray[Any]) -> NDArray[Any]:
        for end in (0, -1):
            edges[:, end] = self.rows(edges[:, end])
        return edges
