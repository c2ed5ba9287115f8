"""Sizes of graphs, and limits on them.

A *size* is a graph's tuple of counts, a *capacity* the same tuple as a limit. Pure numbers: no
torch, no device, no state.

The notation used everywhere: ``N`` nodes, ``E`` edges, ``G`` graphs, ``M`` nodes of the largest
graph; upper case for capacities (physical rows), lower case for real counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option

NODES_EDGES = ("nodes", "edges")


class GraphSize(NamedTuple):
    """How large one graph is. An undirected edge counts as two, as in PyG."""

    nodes: int
    edges: int


@dataclass(frozen=True, slots=True, order=True)
class Capacity:
    """The physical rows of a bucket: ``N`` nodes, ``E`` edges, ``G`` graphs.

    One node and one graph are reserved for padding and never filled by real graphs (jraph's rule),
    so the rows that graphs may use are :attr:`node_limit`, :attr:`edge_limit` and
    :attr:`graph_limit`. ``max_graph_nodes`` is ``M``, the nodes of the largest single graph that
    the bucket takes; dense attention costs ``G * M * M``.

    A data set may have further components (triplets, the nodes of one type): ``extra`` names the
    physical rows of each, one of which is reserved as well. ``edge_reserve`` keeps edges for
    padding where an index counts edges, since its own padding must point at some edge.
    ``node_reserve`` is 2 where nodes have positions: padding edges must join two nodes at different
    positions.

    The numbers must all differ, because the leading dimension of a tensor tells whether its rows
    are nodes, edges, graphs or one of the others.

    Raises:
        ValueError: a number is too small, two of them are equal, or ``M`` exceeds ``N - 1``.
    """

    nodes: int
    edges: int
    graphs: int
    max_graph_nodes: int = 0
    extra: tuple[tuple[str, int], ...] = ()
    edge_reserve: int = 0
    node_reserve: int = 1

    def __post_init__(self) -> None:
        if self.extra or isinstance(self.extra, Mapping):
            pairs = dict(self.extra).items()
            rows = ((name, whole_option(f"extra[{name!r}]", number)) for name, number in pairs)
            object.__setattr__(self, "extra", tuple(rows))
        for name in ("nodes", "edges", "graphs", "max_graph_nodes", "edge_reserve", "node_reserve"):
            object.__setattr__(self, name, whole_option(name, getattr(self, name)))
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
            reserve = "the padding node" if self.node_reserve == 1 else "its padding nodes"
            raise ValueError(
                f"{self}: a graph of {how_many(self.max_graph_nodes, 'node')} does not fit next to "
                f"{reserve}; raise nodes to {self.max_graph_nodes + self.node_reserve}"
            )

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Capacity:
        """A capacity from ``(nodes, edges, graphs)``, optionally followed by ``max_graph_nodes``.

        Raises:
            TypeError: a graph, or a batch of graphs.
            ValueError: not three or four numbers.
        """
        if hasattr(numbers, "keys"):
            raise TypeError(
                f"a {type(numbers).__name__} is not a capacity, which is (nodes, edges, graphs): "
                "plan_stream(graphs, batch_size=...) makes a plan of graphs"
            )
        if len(numbers) not in (3, 4):
            raise ValueError(
                f"{tuple(numbers)}: a capacity is (nodes, edges, graphs) or (nodes, edges, graphs, "
                "max_graph_nodes)"
            )
        nodes, edges, graphs, *more = numbers
        return cls(nodes, edges, graphs, more[0] if more else 0)

    def to_dict(self) -> dict[str, Any]:
        """The capacity as plain values, for JSON."""
        values: dict[str, Any] = {
            "nodes": self.nodes,
            "edges": self.edges,
            "graphs": self.graphs,
            "max_graph_nodes": self.max_graph_nodes,
        }
        if self.extra:
            values["extra"] = dict(self.extra)
        if self.edge_reserve:
            values["edge_reserve"] = self.edge_reserve
        if self.node_reserve != 1:
            values["node_reserve"] = self.node_reserve
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Capacity:
        """Rebuilds a capacity from the output of :meth:`to_dict`.

        Raises:
            TypeError: a key is missing or unknown.
            ValueError: the numbers are not a valid capacity.
        """
        values = dict(values)
        values.pop("ranks", None)  # of a version that bounded the k-th largest graph
        return cls(**{**values, "extra": tuple(dict(values.get("extra", ())).items())})

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
        """A capacity of at least these rows, increased slightly where numbers coincide."""
        if edges == nodes:
            edges += 1
        while graphs in (nodes, edges):
            graphs += 1
        used, free = {nodes, edges, graphs}, {}
        for name, rows in dict(extra).items():
            while rows in used:
                rows += 1
            free[name] = rows
            used.add(rows)
        return cls(
            nodes,
            edges,
            graphs,
            max_graph_nodes,
            tuple(free.items()),
            edge_reserve,
            node_reserve,
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
        """Limits of nodes, edges and the further components, one per column of a size."""
        return (self.node_limit, self.edge_limit, *self.extra_limits)

    @property
    def nodes_each(self) -> int:
        """Nodes of each graph, also of those of padding, where all graphs have one size; else 0."""
        equal = self.max_graph_nodes * self.graphs == self.nodes and not self.extra
        return self.max_graph_nodes if equal else 0

    def rows(self, level: str) -> int:
        """Physical rows of ``node``, ``edge``, ``graph`` or a further component.

        Raises:
            KeyError: the capacity has no such component.
        """
        counts = {"node": self.nodes, "edge": self.edges, "graph": self.graphs, **dict(self.extra)}
        return counts[level]

    @property
    def graph_limit(self) -> int:
        """Graphs that may be real, one less than the physical rows."""
        return self.graphs - 1

    def holds(self, size: GraphSize) -> bool:
        """Whether a single graph of this size fits."""
        return (
            size.nodes <= min(self.node_limit, self.max_graph_nodes)
            and size.edges <= self.edge_limit
        )

    def __str__(self) -> str:
        more = "".join(f", {name}={rows}" for name, rows in self.extra)
        return f"(nodes={self.nodes}, edges={self.edges}, graphs={self.graphs}{more})"
