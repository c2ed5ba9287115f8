"""Capacities for batches that are drawn at random, by somebody else's loader.

The problem: batches that a :class:`staticgraph.StaticLoader` balances all fit one bucket; batches
drawn at random do not, and how often one exceeds a limit decides how large the limit must be. Sums
of 128 sizes are not normal in the tail that matters (one graph may have a hundred times the mean).

The idea: the size of a batch is a sum of independent draws, so its distribution is the convolution
of the histogram with itself, exact by a Fourier transform. Nodes and edges go together, so it is
taken in two dimensions: nodes, and what edges have above a multiple of nodes, which is narrow.
Where the table would be too large, a size is split between two neighbouring cells so that its mean
stays exact. Any further component is added by the union bound.

Numbers alone: no torch, no device, no random draws.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.files.versions import ARITHMETIC, versions
from staticgraph.plans.cost import StepCost, cheapest_classes
from staticgraph.plans.plan import (
    BucketPlan,
    check_is_collection,
    components_of,
    lists_graphs,
    sizes_of,
)
from staticgraph.schema import Axis, Schema
from staticgraph.sizes.capacity import NODES_EDGES, Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.reserves import of_equal_graphs, with_reserves
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import real_option, whole_option

Floats = NDArray[np.float64]

# Cells of a table of sums along nodes, and along the edges' excess: 2 s and 130 MiB together.
NODE_CELLS, EXCESS_CELLS = 1 << 12, 1 << 9
# A table reaches so many standard deviations beyond the mean, and the largest graph's size.
DEVIATIONS = 12.0
# Limits that are compared, from below the mean to where next to nothing misses.
LEVELS = 240
# The share of the allowed misses that each further component may add.
OF_EXTRA = 0.1


def plan_stream(
    source: Any,
    batch_size: int,
    *,
    buckets: int = 4,
    miss: float = 1e-4,
    weights: ArrayLike | None = None,
    components: Sequence[str] | None = None,
    schema: Schema | None = None,
    cost: StepCost | None = None,
) -> BucketPlan:
    """Chooses capacities for batches of graphs drawn at random, each graph independently.

    Args:
        source: a list of graphs (anything with ``num_nodes`` and ``num_edges``), a store, their
            sizes ``[n, C]``, or a :class:`SizeHistogram`.
        batch_size: graphs in a batch.
        buckets: how many capacities at most.
        miss: the share of batches that may fit none of them.
        weights: ``[n]``, how likely each graph (or row of a histogram) is drawn, as for torch's
            ``WeightedRandomSampler``; all alike if None.
        components: the names of the columns of sizes; nodes and edges first.
        schema: what is in a batch, for the rows that its padding needs; by default the store's or,
            without one, the rows that any batch could need.
        cost: the cost of a step, used to choose between buckets.

    Returns:
        A plan that says what to expect: ``shares`` of batches per bucket, ``misses``, and
        ``efficiency``, the expected real rows over physical ones.

    Raises:
        ValueError: there are no graphs, or a number is out of range.
    """
    batch_size = whole_option("batch_size", batch_size, 1)
    buckets = whole_option("buckets", buckets, 1)
    miss = real_option("miss", miss, 0, more=True)
    if isinstance(source, Iterable) and not hasattr(source, "__len__"):
        source = list(source)
    sizes, chances, names, axes = _drawn(source, weights, components)
    schema = getattr(source, "schema", None) if schema is None else schema
    padded = Schema((), axes) if axes and schema is None else schema
    sums = _Sums(sizes[:, :2], chances, batch_size)
    further = [_Sums(sizes[:, [column]], chances, batch_size) for column in range(2, len(names))]
    allowed = miss / max(1, len(further)) * OF_EXTRA
    extra = {
        name: each.levels(allowed)[-1][0] for name, each in zip(names[2:], further, strict=True)
    }
    limits = sums.levels(miss * (1 - OF_EXTRA) if further else miss)
    least, largest = int(sizes[:, 0].min()), int(sizes[:, 0].max())
    capacities = [_capacity(pair, batch_size, largest, padded, extra) for pair in limits]
    if least == largest > 1 and not capacities[0].extra:
        capacities = [of_equal_graphs(each, largest) for each in capacities]
    held = [sums.held(pair) for pair in limits]
    price = cost or StepCost()
    chosen = _cheapest(held, [price.of(each) for each in capacities], buckets)
    chosen_capacities = [capacities[level] for level in chosen]
    shares = np.diff([0.0, *(held[level] for level in chosen)])
    alike = [
        k
        for k in range(len(chosen_capacities) - 1)
        if chosen_capacities[k] == chosen_capacities[k + 1]
    ]  # further rows alone count
    for k in alike:
        shares[k + 1] += shares[k]
    chosen_capacities, shares = (
        [c for k, c in enumerate(chosen_capacities) if k not in alike],
        np.delete(shares, alike),
    )
    over = sum(1 - each.held((rows,)) for each, rows in zip(further, extra.values(), strict=True))
    missed = max(0.0, 1 - held[chosen[-1]]) + over
    rows = np.array(
        [[each.nodes, each.edges, each.graphs] for each in chosen_capacities], np.float64
    )
    filled = np.array([*sums.mean, batch_size]) / np.maximum(1, shares @ rows / shares.sum())
    return BucketPlan(
        capacities=tuple(chosen_capacities),
        batch_size=batch_size,
        schema=schema,
        strategy="stream",
        efficiency=tuple(map(float, filled)),
        note=f"batches drawn at random: {', '.join(f'{share:.2%}' for share in shares)} by bucket, "
        f"{missed:.1e} of them fit none",
        versions=tuple(versions(ARITHMETIC).items()),
        shares=tuple(map(float, shares)),
        misses=float(missed),
        source=_examples(source, batch_size),
    )


def _examples(source: Any, batch_size: int) -> Callable[[], Any]:
    """Returns what finds graphs for a warm-up: the store, while it exists, or a batch of graphs."""
    stored = hasattr(source, "schema")
    if not stored and not lists_graphs(source):
        return type(None)
    first = [source[n] for n in range(min(batch_size, len(source)))]
    store = weakref.ref(source) if stored else type(None)
    return lambda: first if (living := store()) is None else living


def _drawn(
    source: Any, weights: ArrayLike | None, components: Sequence[str] | None
) -> tuple[IntArray, Floats, tuple[str, ...], tuple[Axis, ...]]:
    """Returns the distinct sizes, the chance that a draw has each, the names of the columns, and
    the axes of graphs with types."""
    axes: tuple[Axis, ...] = ()
    if isinstance(source, SizeHistogram):
        rows, counts = source.sizes, source.counts.astype(np.float64)
    else:
        check_is_collection(source)
        if lists_graphs(source):
            counted = [_counts(source[n]) for n in range(len(source))]
            uncounted = next((n for n, each in enumerate(counted) if None in each.values()), None)
            if uncounted is not None:
                raise ValueError(
                    f"graph {uncounted} does not know its num_nodes; a store counts rows of every "
                    "kind: plan_stream(sg.GraphStore.from_pyg(graphs, keep_order=True), ...)"
                )
            kinds = dict.fromkeys(kind for each in counted for kind in each)
            source = np.array([[each.get(kind, 0) for kind in kinds] for each in counted], np.int64)
            axes = tuple(kind for kind in kinds if isinstance(kind, Axis))
            components = components or (*NODES_EDGES, *(axis.name for axis in axes))
        rows = sizes_of(source)
        counts = np.ones(len(rows))
    if not len(rows):
        raise ValueError("a plan needs at least one graph; there is none")
    if weights is not None:
        share = np.asarray(weights, np.float64)
        if share.shape != counts.shape or not (share >= 0).all() or not share.sum() > 0:
            raise ValueError(
                f"weights of shape {list(share.shape)} for {how_many(len(counts), 'size')}: give "
                "one number per graph, none below 0 and not all 0"
            )
        counts = counts * share
    known = components_of(source) if not isinstance(source, np.ndarray) else NODES_EDGES
    names = tuple(components) if components is not None else known
    if len(names) != rows.shape[1]:
        raise ValueError(
            f"sizes have {rows.shape[1]} columns, and components= names {len(names)}: name every "
            "column"
        )
    rows, counts = rows[counts > 0], counts[counts > 0]
    distinct, member = np.unique(rows, axis=0, return_inverse=True)
    chances = np.bincount(member.reshape(-1), counts)
    return distinct.astype(np.int64), chances / chances.sum(), names, axes


def _counts(graph: Any) -> dict[str | Axis, int]:
    """A graph's numbers of nodes and edges, and of its rows of each type."""
    counts: dict[str | Axis, int] = {"nodes": graph.num_nodes, "edges": graph.num_edges}
    if hasattr(graph, "node_types"):
        for kind in graph.node_types:
            counts[Axis(kind, "node", (kind,))] = graph[kind].num_nodes
        for kind in graph.edge_types:
            counts[Axis("__".join(kind), "edge", tuple(kind))] = graph[kind].num_edges
    return counts


@dataclass(frozen=True, slots=True)
class _Grid:
    """One axis of a table of sums: cell ``j`` is the value ``first + j * step``.

    Attributes:
        slack: how far a value may lie above a limit and count as within it: half a cell where a
            cell stands for several values, nothing where each value has its own.
        cells, begin: the length of the table, and which cell of the whole axis is its first.
        places: ``[2, T]`` the cells below and above each size, in units of a draw.
        shares: ``[2, T]`` how the chance of a size is divided between them.
    """

    first: float
    step: float
    slack: float
    cells: int
    begin: int
    places: IntArray
    shares: Floats

    @classmethod
    def from_values(cls, values: IntArray, chances: Floats, draws: int, most: int) -> _Grid:
        """The axis for the sum of ``draws`` of these values, of at most ``most`` cells."""
        low, high = int(values.min()), int(values.max())
        unit = int(np.gcd.reduce(values - low)) or 1
        mean = float(chances @ values)
        reach = DEVIATIONS * np.sqrt(draws * float(chances @ (values - mean) ** 2))
        lowest = max(draws * (low - mean), -reach) + draws * mean
        highest = min(draws * (high - mean), reach + 2 * (high - mean)) + draws * mean
        step = unit * max(1, int(np.ceil((highest - lowest) / unit / (most - 2))))
        begin = int((lowest - draws * low) / step)
        cells = int((highest - draws * low) / step) + 2 - begin
        exact = (values - low) / step
        below = np.floor(exact).astype(np.int64)
        above = exact - below
        places, shares = np.stack([below, below + 1]), np.stack([1 - above, above])
        slack = step / 2 if step > unit else 0.0
        return cls(draws * low + begin * step, float(step), slack, cells, begin, places, shares)


class _Sums:
    """The distribution of the sum of independent draws of one component, or of nodes and edges.

    Args:
        sizes: ``[T, 1]`` or ``[T, 2]``.
        chances: ``[T]``, the chance that a draw has each size.
        draws: how many draws are added up.
    """

    def __init__(self, sizes: IntArray, chances: Floats, draws: int) -> None:
        mean = chances @ sizes
        self.mean: Floats = mean * draws
        self.deviation: Floats = np.sqrt(draws * (chances @ (sizes - mean) ** 2))
        self.least: IntArray = sizes.min(axis=0) * draws
        self.most: IntArray = sizes.max(axis=0) * draws
        excess, self._slope = np.zeros(len(sizes), np.int64), 0
        if sizes.shape[1] == 2:
            common = int(np.gcd.reduce(sizes[:, 1])) or 1
            self._slope = common * round(mean[1] / max(mean[0], 1e-9) / common)
            excess = sizes[:, 1] - self._slope * sizes[:, 0]
        nodes = self._nodes = _Grid.from_values(sizes[:, 0], chances, draws, NODE_CELLS)
        edges = self._edges = _Grid.from_values(excess, chances, draws, EXCESS_CELLS)
        single = np.zeros((nodes.cells, edges.cells))
        for i in (0, 1):
            for j in (0, 1):
                place = nodes.places[i] % nodes.cells, edges.places[j] % edges.cells
                np.add.at(single, place, chances * nodes.shares[i] * edges.shares[j])
        # Sums modulo the table's length: all but a negligible part of them lie within it.
        table = np.fft.irfft2(np.fft.rfft2(single) ** draws, s=single.shape)
        table = np.roll(table, (-nodes.begin, -edges.begin), (0, 1))
        self._cumulated = np.cumsum(np.maximum(0, table), axis=1)

    def held(self, limits: Sequence[float]) -> float:
        """The probability that no component exceeds its limit."""
        nodes, edges = self._nodes, self._edges
        rows = nodes.first + nodes.step * np.arange(nodes.cells)
        rows = rows[rows <= limits[0] + nodes.slack]
        last = np.full(len(rows), edges.cells - 1)
        if len(limits) > 1:
            room = limits[1] + edges.slack - self._slope * rows - edges.first
            last = np.floor(room / edges.step + 1e-9).astype(np.int64)
        within = self._cumulated[np.arange(len(rows)), np.clip(last, 0, edges.cells - 1)]
        return min(1.0, float(within[last >= 0].sum()))

    def find_limits(self, level: float) -> tuple[int, ...]:
        """The limits so many standard deviations above the mean of every component."""
        limits = np.ceil(self.mean + level * self.deviation).astype(np.int64)
        return tuple(np.clip(limits, self.least, self.most).tolist())

    def levels(self, miss: float) -> list[tuple[int, ...]]:
        """Limits from the mean up to the first that at most ``miss`` of all sums exceed."""
        low, high = 0.0, 1.0
        while 1 - self.held(self.find_limits(high)) > miss and self.find_limits(high) != tuple(
            self.most.tolist()
        ):
            high *= 2
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (low, middle) if 1 - self.held(self.find_limits(middle)) <= miss else (middle, high)
            )
        levels = np.linspace(min(-1.0, high), high, LEVELS)
        return list(dict.fromkeys(self.find_limits(float(level)) for level in levels))


def _cheapest(held: Sequence[float], costs: Sequence[float], buckets: int) -> list[int]:
    """Returns which limits, ascending and the last among them, make the mean step cheapest.

    Args:
        held: the share of batches that each takes.
        costs: the cost of a step at each.
        buckets: how many at most.
    """
    share, price = np.array([0.0, *held]), np.array([0.0, *costs])
    classes = np.maximum(0, share - share[:, None]) * price
    classes[np.tril_indices(len(share))] = np.inf  # only from a lower level
    paths = cheapest_classes(classes, min(buckets, len(held)))
    best = min(paths, key=lambda path: sum(classes[pair] for pair in path))
    return [level - 1 for _, level in best]


def _capacity(
    limits: tuple[int, ...], graphs: int, largest: int, schema: Schema | None, extra: dict[str, int]
) -> Capacity:
    """Returns the capacity with these limits, and the rows that padding needs."""
    nodes, edges = limits[0] + 1, limits[1]
    more = {name: rows + 1 for name, rows in extra.items()}
    if schema is not None:
        capacity = with_reserves(Capacity.distinct(nodes, edges, graphs + 1, 0, more), schema)
    else:  # two nodes apart, an edge that an index can count, and edges in pairs
        edges += 1 + (edges + 1) % 2
        while edges in (nodes + 1, graphs + 1):
            edges += 2
        capacity = Capacity.distinct(nodes + 1, edges, graphs + 1, 0, more, 1, 2)
    return replace(capacity, max_graph_nodes=min(largest, max(1, capacity.node_limit)))
