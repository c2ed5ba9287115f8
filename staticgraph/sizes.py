"""Sizes of graphs, limits on them, and how often each size occurs.

Everything that decides shapes (packing, buckets, the memory budget) needs only how large the graphs
are, never what they carry. A *size* is a graph's tuple of counts, a *capacity* the same tuple as a
limit, and a *histogram* says how many graphs have each distinct size: ogbg-molhiv's 32,901 training
graphs are 795 pairs. Pure numbers: no torch, no device, no state.

The legend used everywhere: ``N`` nodes, ``E`` edges, ``G`` graphs, ``M`` nodes of the largest
graph; capitals are capacities (physical rows), lower case what is really there.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.files import atomic

IntArray = NDArray[np.int64]

NODES_EDGES = ("nodes", "edges")
# Totals of a histogram stay below this, so that no sum or product of them leaves int64.
MOST_ROWS = 2**62


def whole_numbers(values: ArrayLike, what: str, error: type[ValueError] = ValueError) -> IntArray:
    """The values as int64, never rounded: 2.0 is 2, and 2.7 is refused.

    Args:
        values: numbers of any dtype and shape.
        what: they are, for the message.
        error: the type to raise.

    Raises:
        ValueError: (or ``error``) a value is not a whole number of 64 bits; the message says which.
    """
    given = np.asarray(values)
    if given.dtype.kind in "iu" and given.dtype != np.uint64:
        return given.astype(np.int64, copy=False)
    if given.size == 0:
        return np.zeros(given.shape, np.int64)
    if given.dtype.kind not in "fu":
        raise error(f"{what}: {given.dtype} are no whole numbers")
    wrong = given != np.floor(given) if given.dtype.kind == "f" else np.zeros(given.shape, bool)
    wrong |= ~(np.abs(given) < 2**63)
    if wrong.any():
        at = int(wrong.reshape(-1).argmax())
        raise error(f"{what}: entry {at} is {given.reshape(-1)[at]}, which is no whole number")
    return given.astype(np.int64)


def distinct_rows(rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Distinct rows of ``[n, C]`` numbers of at least 0 in lexicographic order, which of them each
    row is ``[n]``, and how often each occurs. As ``np.unique`` gives them, a dozen times faster
    where a row fits one number."""
    spans = rows.max(axis=0, initial=0) + 1.0
    if rows.ndim == 2 and len(rows) and rows.min() >= 0 and np.prod(spans) < MOST_ROWS:
        shape = tuple(spans.astype(np.int64).tolist())
        keys = np.ravel_multi_index(tuple(rows.T), shape)
        keys, member, counts = np.unique(keys, return_inverse=True, return_counts=True)
        distinct = np.stack(np.unravel_index(keys, shape), axis=1)
    else:
        distinct, member, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return distinct.astype(np.int64), member.reshape(-1), counts.astype(np.int64)


def pointer_dtype(edges: int) -> str:
    """The dtype of pointers into so many edges, the end included: int32 while it holds them."""
    return "int32" if edges <= np.iinfo(np.int32).max else "int64"


class GraphSize(NamedTuple):
    """How large one graph is. An undirected edge counts as two, as in PyG."""

    nodes: int
    edges: int


@dataclass(frozen=True, slots=True, order=True)
class Capacity:
    """The physical rows of a bucket: ``N`` nodes, ``E`` edges, ``G`` graphs.

    One node and one graph are a reserve for padding that real graphs never fill (jraph's rule), so
    the rows that graphs may use are :attr:`node_limit`, :attr:`edge_limit` and :attr:`graph_limit`.
    ``max_graph_nodes`` is ``M``, the nodes of the largest single graph that the bucket takes; dense
    attention costs ``G * M * M``.

    A data set may have further components (triplets, the nodes of one type): ``extra`` names the
    physical rows of each, of which one is a reserve as well. ``edge_reserve`` keeps edges for
    padding where an index counts edges, since its own padding must point at some. ``node_reserve``
    is 2 where nodes have positions: padding edges must join two nodes that stand apart.

    ``ranks`` promises more of the batches that the bucket takes: pairs ``(k, width)``, the ``k``
    ascending from 0, such that with the graphs in order of falling size the ``k``-th, counted from
    zero, and all after it have at most ``width`` nodes. The first width is ``M``. Without any, the
    limits alone bound them.

    The numbers must all differ, because the leading size of a tensor tells whether its rows are
    nodes, edges, graphs or one of the others.

    Raises:
        ValueError: a number is too small, two of them are equal, or ``M`` exceeds ``N - 1``.
    """

    nodes: int
    edges: int
    graphs: int
    max_graph_nodes: int = 0
    extra: tuple[tuple[str, int], ...] = ()
    edge_reserve: int = 0
    ranks: tuple[tuple[int, int], ...] = ()
    node_reserve: int = 1

    def __post_init__(self) -> None:
        if self.extra or isinstance(self.extra, Mapping):
            pairs = dict(self.extra).items()
            object.__setattr__(self, "extra", tuple((name, int(rows)) for name, rows in pairs))
        for name in ("nodes", "edges", "graphs", "max_graph_nodes", "edge_reserve", "node_reserve"):
            try:
                object.__setattr__(self, name, index(getattr(self, name)))
            except TypeError:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} of a capacity is no whole number"
                ) from None
        if min(self.nodes, self.node_reserve) < 1 or self.edges < 0 or self.graphs < 2:
            raise ValueError(
                f"{self}: a bucket needs at least 1 node, 0 edges and 2 graphs, "
                "since one node and one graph are kept for padding"
            )
        numbers = [self.nodes, self.edges, self.graphs, *dict(self.extra).values()]
        if len(set(numbers)) < len(numbers):
            others = "".join(f", {name}" for name, _ in self.extra)
            raise ValueError(
                f"{self}: the numbers of nodes, edges and graphs{others} must differ, because the "
                "leading size of a tensor tells which of them its rows are; raise one of them by "
                "1, or use Capacity.distinct(...)"
            )
        if self.edge_limit < 0 or min(numbers[3:], default=1) < 1:
            raise ValueError(f"{self}: no row is left for padding; raise the number by 1")
        if not self.max_graph_nodes:
            object.__setattr__(self, "max_graph_nodes", max(1, self.node_limit))
        if self.max_graph_nodes > max(1, self.node_limit):
            kept = "the padding node" if self.node_reserve == 1 else "its padding nodes"
            raise ValueError(
                f"{self}: a graph of {self.max_graph_nodes} nodes does not fit beside {kept}; "
                f"raise nodes to {self.max_graph_nodes + self.node_reserve}"
            )
        if self.ranks:
            object.__setattr__(self, "ranks", tuple((int(k), int(w)) for k, w in self.ranks))
            self._check_ranks()

    def _check_ranks(self) -> None:
        firsts, widths = ([pair[i] for pair in self.ranks] for i in (0, 1))
        rising = all(a < b for a, b in pairwise(firsts)) and firsts[-1] < self.graphs
        falling = all(a > b for a, b in pairwise(widths)) and widths[-1] >= 1
        if firsts[0] != 0 or widths[0] != self.max_graph_nodes or not (rising and falling):
            raise ValueError(
                f"{self}: ranks {self.ranks} must begin with (0, {self.max_graph_nodes}), rise in "
                f"the first numbers to below {self.graphs}, and fall in the second to at least 1"
            )

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Capacity:
        """``(nodes, edges, graphs)``, or with ``max_graph_nodes`` after them.

        Raises:
            ValueError: as many numbers as that are not there.
        """
        if len(numbers) not in (3, 4):
            raise ValueError(
                f"{tuple(numbers)}: a capacity is (nodes, edges, graphs) or (nodes, edges, graphs, "
                "max_graph_nodes)"
            )
        nodes, edges, graphs, *more = numbers
        return cls(nodes, edges, graphs, more[0] if more else 0)

    @classmethod
    def distinct(
        cls,
        nodes: int,
        edges: int,
        graphs: int,
        max_graph_nodes: int = 0,
        extra: Mapping[str, int] | Sequence[tuple[str, int]] = (),
        edge_reserve: int = 0,
        node_reserve: int = 1,
    ) -> Capacity:
        """A capacity of at least these rows, raised by a few where numbers coincide."""
        if edges == nodes:
            edges += 1
        while graphs in (nodes, edges):
            graphs += 1
        taken, free = {nodes, edges, graphs}, {}
        for name, rows in dict(extra).items():
            while rows in taken:
                rows += 1
            free[name] = rows
            taken.add(rows)
        return cls(
            nodes,
            edges,
            graphs,
            max_graph_nodes,
            tuple(free.items()),
            edge_reserve,
            node_reserve=node_reserve,
        )

    @property
    def node_limit(self) -> int:
        """Nodes that real graphs may use."""
        return self.nodes - self.node_reserve

    @property
    def edge_limit(self) -> int:
        """Edges that real graphs may use."""
        return self.edges - self.edge_reserve

    @property
    def extra_limits(self) -> tuple[int, ...]:
        """Rows of the further components that real graphs may use."""
        return tuple(rows - 1 for _, rows in self.extra)

    @property
    def size_limits(self) -> tuple[int, ...]:
        """Limits of nodes, of edges, and of the further components: of each column of a size."""
        return (self.node_limit, self.edge_limit, *self.extra_limits)

    def rows(self, level: str) -> int:
        """Physical rows of ``node``, ``edge``, ``graph`` or a further component.

        Raises:
            KeyError: the capacity has no such component.
        """
        known = {"node": self.nodes, "edge": self.edges, "graph": self.graphs, **dict(self.extra)}
        return known[level]

    @property
    def graph_limit(self) -> int:
        """Graphs that may be real."""
        return self.graphs - 1

    def holds(self, size: GraphSize) -> bool:
        """Whether a single graph of this size fits."""
        return (
            size.nodes <= min(self.node_limit, self.max_graph_nodes)
            and size.edges <= self.edge_limit
        )

    def ranks_hold(self, nodes: ArrayLike) -> bool:
        """Whether graphs of these nodes, ``[g]`` in any order, are as :attr:`ranks` promises."""
        if not self.ranks:
            return True
        falling = -np.sort(-np.asarray(nodes, dtype=np.int64))
        return all(k >= len(falling) or falling[k] <= width for k, width in self.ranks)

    def __str__(self) -> str:
        more = "".join(f", {name}={rows}" for name, rows in self.extra)
        return f"(nodes={self.nodes}, edges={self.edges}, graphs={self.graphs}{more})"


@dataclass(frozen=True, slots=True, eq=False)
class SizeHistogram:
    """Distinct sizes and how many graphs have each, in lexicographic order.

    Attributes:
        sizes: ``[T, C]`` int64, one distinct size a row.
        counts: ``[T]`` int64, how many graphs have it, each at least 1.
        components: the ``C`` names of the columns; the first two are nodes and edges.
    """

    sizes: IntArray
    counts: IntArray
    components: tuple[str, ...] = NODES_EDGES

    def __post_init__(self) -> None:
        if self.sizes.ndim != 2 or self.sizes.shape[1] != len(self.components):
            raise ValueError(
                f"sizes has shape {self.sizes.shape}, expected [T, {len(self.components)}] "
                f"for the components {', '.join(self.components)}"
            )
        if self.counts.shape != self.sizes.shape[:1]:
            raise ValueError(f"{len(self.counts)} counts for {len(self.sizes)} sizes")
        if len(self.counts) and (self.counts.min() < 1 or self.sizes.min() < 0):
            raise ValueError("counts must be at least 1 and sizes at least 0")
        totals = self.counts.astype(np.float64) @ self.sizes.astype(np.float64)
        most = max(float(self.counts.sum(dtype=np.float64)), *totals.tolist(), 0.0)
        if most >= MOST_ROWS:
            raise ValueError(
                f"{most:.3g} graphs or rows in all, which 64 bits do not hold twice over "
                f"(2**62 is the most): scale the counts down"
            )

    @classmethod
    def from_sizes(cls, sizes: ArrayLike, components: Sequence[str] = NODES_EDGES) -> SizeHistogram:
        """Counts the distinct rows of ``sizes`` ``[n, C]``."""
        rows = np.ascontiguousarray(whole_numbers(sizes, "sizes of graphs"))
        distinct, _, counts = distinct_rows(rows)
        return cls(distinct, counts, tuple(components))

    @classmethod
    def from_csv(cls, path: str | Path) -> SizeHistogram:
        """Reads ``num_nodes,num_edges[,...],count`` with one header line.

        Raises:
            ValueError: no ``count`` column, or a value that is not a whole number.
        """
        try:
            # With or without the byte-order mark that spreadsheets write.
            with Path(path).open(encoding="utf-8-sig") as file:
                header = file.readline().strip().split(",")
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not text; expected num_nodes,num_edges,count") from None
        if len(header) < 2 or header[-1] != "count":
            raise ValueError(
                f"{path}: the header is {','.join(header)!r}; expected num_nodes,num_edges,count"
            )
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise ValueError(f"{path}: the column {twice!r} appears twice; rename or drop one")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a table without rows, which is told below
                table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}: {error}; expected whole numbers below the header") from None
        if not table.size:
            raise ValueError(f"{path} has no rows below its header; expected sizes and counts")
        components = tuple(name.removeprefix("num_") for name in header[:-1])
        order = np.lexsort(table[:, -2::-1].T)
        table = table[order]
        return cls(
            np.ascontiguousarray(table[:, :-1]), np.ascontiguousarray(table[:, -1]), components
        )

    def to_csv(self, path: str | Path) -> None:
        """Writes what :meth:`from_csv` reads."""
        header = ",".join([f"num_{name}" for name in self.components] + ["count"])
        table = np.column_stack([self.sizes, self.counts])
        with atomic.writing(path) as file:
            np.savetxt(file, table, fmt="%d", delimiter=",", header=header, comments="")

    @property
    def num_graphs(self) -> int:
        """All graphs counted."""
        return int(self.counts.sum())

    @property
    def totals(self) -> IntArray:
        """``[C]`` int64: each component summed over all graphs."""
        return self.counts @ self.sizes

    @property
    def maxima(self) -> IntArray:
        """``[C]`` int64: the largest value of each component, zeros where there are no graphs."""
        if not len(self.counts):
            return np.zeros(len(self.components), dtype=np.int64)
        return self.sizes.max(axis=0)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with any size or count (SHA-256)."""
        hashed = hashlib.sha256(",".join(self.components).encode())
        hashed.update(np.ascontiguousarray(self.sizes).tobytes())
        hashed.update(np.ascontiguousarray(self.counts).tobytes())
        return hashed.hexdigest()[:16]
