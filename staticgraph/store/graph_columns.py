"""A data set of many graphs as flat columns, ready to be copied into batches.

Problem: batching a list of PyG ``Data`` objects costs tens of microseconds per graph, because each
of its tensors is a separate Python object. Idea: one array per attribute over all graphs, with
offsets that say where each graph begins; a batch is then a handful of block copies. Columns are
kept in the smallest dtype that holds their values exactly (atom features that PyG keeps in int64
fit in a byte) and are widened while a batch is filled. Edges are sorted by destination within each
graph and stored with row pointers and the permutation that sorts them by source, so that sums over
neighbours need no atomics.

Invariant: ``store[i]`` is the graph that went in, with its edges in their original order and its
original dtypes. A store is immutable: to add graphs, build another. On disk a store is one folder
of ``.npy`` files, memory-mapped when loaded, with a manifest that holds the version and checksums.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.errors import BadGraph
from staticgraph.schema import Axis, Field, Level, Schema
from staticgraph.sizes.capacity import GraphSize
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray, stacked
from staticgraph.store.block_checks import Checks
from staticgraph.store.columns import (
    Array,
    IndexRule,
    Splits,
    checked_columns,
    checked_splits,
    offsets_of_counts,
    require_finite,
)
from staticgraph.store.indices import check_indices, first_order, sorted_edges
from staticgraph.store.objects import ObjectColumn, ObjectsOf
from staticgraph.store.positions import graph_number, one_graph, several_graphs
from staticgraph.store.structure import STRUCTURE
from staticgraph.text.how_many import how_many

# Number of graphs whose sizes are computed at once; as int64 differences of offsets they take 16
# bytes per graph.
AT_ONCE = 1 << 21
# The class of store to build.
Kept = TypeVar("Kept", bound="GraphColumns")


@dataclass(frozen=True, eq=False)
class GraphColumns:
    """A data set of graphs as flat columns, and the methods that read them.

    :class:`staticgraph.GraphStore` adds the conversions from PyG, to and from disk, and to a
    device.

    Attributes:
        schema: the fields and the dtypes that a model sees.
        node_offsets: ``[n + 1]`` int64, where each graph's nodes begin in the node columns.
        edge_offsets: ``[n + 1]`` int64, likewise for edges.
        edge_src: ``[sum e]``, source of each edge, numbered within its graph (compact dtype).
        edge_dst: ``[sum e]``, destination, ascending within each graph unless the schema keeps
            the order of edges.
        row_ptr: ``[sum n + 1]``, where each node's incoming edges begin among all edges.
        transpose: ``[sum e]``, each graph's stable permutation of its edges by source.
        edge_origin: ``[sum e]``, position of each edge before sorting; empty if all were sorted.
        columns: one array per field, ``[rows of its level, *shape]``, in a compact dtype.
        splits: named lists of graph indices, such as ``train``, if the data set has them.
        name: the name used in error messages and tables.
        offsets: axis -> ``[n + 1]`` int64, where each graph's rows begin, for every axis of the
            schema.
        origins: edge type -> position of each edge in its graph before sorting; types that were
            already sorted are left out. For heterogeneous data, or if ``edge_index`` joins two
            levels, the edge arrays above are empty except ``edge_origin``, and each ``edge_index``
            is a column. If the schema keeps the order of edges, ``row_ptr``, ``transpose``,
            ``edge_origin`` and ``origins`` are empty.
        checks: which blocks of a large store on disk are still unchecked. Reading a batch or a
            graph checks its blocks; reading ``columns`` directly does not (see :meth:`column`).
        objects: strings and other small objects, one per graph, which stay on the host.
        by_rank: whether a loader gives each rank a range of the graphs of its own.
    """

    schema: Schema
    node_offsets: IntArray
    edge_offsets: IntArray
    edge_src: Array
    edge_dst: Array
    row_ptr: Array
    transpose: Array
    edge_origin: Array
    columns: Mapping[str, Array]
    splits: Mapping[str, IntArray] = field(default_factory=dict)
    name: str = "data"
    offsets: Mapping[str, IntArray] = field(default_factory=dict)
    origins: Mapping[str, Array] = field(default_factory=dict)
    checks: Checks | None = field(default=None, repr=False)
    objects: Mapping[str, ObjectColumn] = field(default_factory=dict)
    by_rank: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", Splits(self.splits))

    # ------------------------------------------------------------------ building

    @classmethod
    def from_arrays(
        cls,
        num_nodes: Array,
        num_edges: Array,
        edge_src: Array,
        edge_dst: Array,
        fields: Mapping[str, tuple[Level, Array]],
        *,
        rows: Mapping[str, int] | None = None,
        splits: Mapping[str, Array] | None = None,
        name: str = "data",
        check_finite: bool | tuple[str, ...] = False,
        axes: Mapping[Axis, Array] | None = None,
        rules: Mapping[str, IndexRule] | None = None,
    ) -> Self:
        """Builds a store from flat arrays over all graphs.

        Args:
            num_nodes: ``[n]`` nodes of each graph.
            num_edges: ``[n]`` directed edges of each graph (an undirected edge counts twice).
            edge_src: ``[sum e]`` source of each edge, numbered within its graph, in any order.
            edge_dst: ``[sum e]`` destination of each edge, likewise.
            fields: attribute -> (level, ``[rows of the level, *shape]``); the array's dtype is the
                one that a model will see, however compactly it is stored.
            rows: rows per graph of graph-level attributes that have more than one.
            splits: named lists of graph indices.
            name: the data set's name in error messages.
            check_finite: reject NaN and infinity in every floating field except ``y`` (True), or in
                the named ones.
            axes: axis -> ``[n]`` rows of each graph, for rows that are neither nodes nor edges; a
                field's level may then be the axis's name.
            rules: index field -> its row dimension and the levels that its values index. For
                heterogeneous data, ``num_nodes`` and ``num_edges`` are sums over the types, and
                ``edge_src`` and ``edge_dst`` are empty: the edges of a type are the field
                ``a__to__b.edge_index``. Likewise, if edges lead from one level to another (a
                bipartite graph), they are the field ``edge_index`` of level ``edge``.

        Raises:
            BadGraph: if there is no graph, an edge points outside its graph, a column has the wrong
                length, or ``check_finite`` finds a value that is not finite; the message names the
                graph.
            ValueError: if a field has a name that batches reserve.
        """
        axis_rows = {axis.name: rows for axis, rows in (axes or {}).items()}
        offsets = offsets_of_counts(num_nodes, num_edges, axis_rows, name)
        schema, columns = checked_columns(fields, rows or {}, offsets, tuple(axes or ()), rules)
        require_finite(schema, columns, offsets, check_finite)
        check_indices(schema, columns, offsets)
        return cls(
            schema=schema,
            node_offsets=offsets["node"],
            edge_offsets=offsets["edge"],
            splits=checked_splits(splits or {}, len(offsets["node"]) - 1, name),
            name=name,
            offsets={axis: offsets[axis] for axis in axis_rows},
            **sorted_edges(edge_src, edge_dst, schema, columns, offsets, name),
        )

    @classmethod
    def zeros(cls, schema: Schema) -> Self:
        """Builds a store of one graph: one node, no edges, no rows on any axis, all zeros (also in
        an index of rows that do not exist here)."""
        length = {"node": 1, "graph": 1}
        rows = {item.name: length.get(item.level, 0) * item.rows for item in schema}
        none, nothing = np.empty(0, np.int64), np.zeros(2, np.int64)
        return cls(
            schema=schema,
            node_offsets=np.arange(2),
            edge_offsets=nothing,
            edge_src=none,
            edge_dst=none,
            row_ptr=np.zeros(2 * schema.has_pointers, np.int32),
            transpose=none,
            edge_origin=none,
            columns={
                item.name: np.zeros((rows[item.name], *item.shape), item.dtype) for item in schema
            },
            offsets={axis.name: nothing for axis in schema.axes},
        )

    # ------------------------------------------------------------------ on disk

    def verify(self, graphs: IntArray | None = None) -> None:
        """Checks all data on disk that has not been checked yet against its checksums.

        Args:
            graphs: check only the blocks of these graphs; None for all.

        Raises:
            StoreCorrupt: if a checksum differs; the message names the array and the graphs.
        """
        if graphs is None:
            parts = ((part(), None) for part in self._parts())
        else:
            parts, _ = self._by_part(np.asarray(graphs, np.int64))
        for part, ids in parts:
            if part.checks is not None:
                part.checks.touch(ids)

    def column(self, name: str) -> Array:
        """Returns the whole column of a field, after checking it against its checksums."""
        for open_part in self._parts():
            if (checks := open_part().checks) is not None:
                checks.column(f"column.{name}")
        return self.columns[name]

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return len(self.node_offsets) - 1

    @cached_property
    def sizes(self) -> IntArray:
        """``[n, C]`` int64: nodes, edges and rows of each axis per graph; reads no features."""
        return self.narrow_sizes.astype(np.int64)

    @cached_property
    def narrow_sizes(self) -> Array:
        """:attr:`sizes` in the narrowest signed dtype: 0.4 GB for 100 million molecules."""
        offsets = (self.node_offsets, self.edge_offsets, *self.offsets.values())
        starts = range(0, max(1, len(self)), AT_ONCE)
        return np.concatenate(
            [stacked([np.diff(each[k : k + AT_ONCE + 1]) for each in offsets]) for k in starts]
        )

    def offsets_of(self, level: Level) -> IntArray:
        """Returns ``[n + 1]``: where each graph's rows of a level begin."""
        if level == "graph":
            return np.arange(len(self) + 1)
        offsets = {"node": self.node_offsets, "edge": self.edge_offsets}
        return offsets[level] if level in offsets else self.offsets[level]

    @cached_property
    def histogram(self) -> SizeHistogram:
        """How many graphs have each size."""
        return SizeHistogram.from_sizes(self.narrow_sizes, self.schema.components)

    def size(self, graph: int) -> GraphSize:
        """Returns the numbers of nodes and edges of one graph; -1 is the last one.

        Raises:
            IndexError: there is no such graph.
            ValueError: ``graph`` is not a whole number.
        """
        graph = graph_number(graph, len(self.narrow_sizes))
        return GraphSize(*map(int, self.narrow_sizes[graph, :2]))

    @property
    def nbytes(self) -> int:
        """Bytes of all columns and indices."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, Array]:
        """Returns every array, keyed by the name of its file."""
        mappings = {
            "column": self.columns,
            "split": self.splits,
            "offsets": self.offsets,
            "origins": self.origins,
            "objects": {key: value.text for key, value in self.objects.items()},
            "object_ends": {key: value.ends for key, value in self.objects.items()},
        }
        return {key: getattr(self, key) for key in STRUCTURE} | {
            f"{kind}.{key}": array
            for kind, mapping in mappings.items()
            for key, array in mapping.items()
        }

    def objects_of(self, graphs: IntArray) -> ObjectsOf:
        """Returns what the host alone knows of some graphs, read lazily."""
        return ObjectsOf(self, graphs)

    def places_of(self, graphs: IntArray, level: Level) -> IntArray | None:
        """Returns which row each edge of some graphs was before sorting.

        Rows are those of all these graphs, one after the other. None if no edge was moved.
        """
        component = "edges" if level == "edge" else level
        counts = self.narrow_sizes[graphs, self.schema.components.index(component)]
        origins = [self.origin_of(graph, level) for graph in graphs.tolist()]
        parts = [
            np.arange(count, dtype=np.int64) if origin is None else origin.astype(np.int64)
            for count, origin in zip(counts.tolist(), origins, strict=True)
        ]
        ends = np.cumsum(counts, dtype=np.int64)
        places = np.concatenate([*parts, ends[:0]]) + np.repeat(ends - counts, counts)
        return None if (places == np.arange(len(places))).all() else places

    def with_splits(self, **splits: ArrayLike) -> Self:
        """Returns the same store with these named splits.

        Each split is a list of graph indices, such as ``range(900)``, or a boolean mask with one
        entry per graph.
        """
        other = object.__new__(type(self))
        checked = Splits(checked_splits(splits, len(self), self.name))
        vars(other).update(vars(self), splits=checked)
        return other

    def in_first_order(self) -> Self:
        """Returns the same graphs with the edges of each in the order in which they came.

        Batches then have them in that order, which is PyG's; the fused kernels, which need edges
        sorted by destination, do not run over them.
        """
        if self.schema.keep_order:
            return self
        self.verify()
        levels = ("node", "edge", "graph", *self.offsets)
        changed = first_order(
            self.schema,
            (self.edge_src, self.edge_dst),
            self.columns,
            {level: self.offsets_of(level) for level in levels},
            {"edge": self.edge_origin, **self.origins},
        )
        return replace(self, checks=None, **changed)

    def cardinality(self, name: str) -> tuple[int, ...]:
        """Returns one more than the largest value in each column of an integer field.

        These are the numbers of rows that embedding tables need: ``(119, 4, ...)`` for OGB's atom
        features.
        """
        column, width = self.column(name), self.schema[name].width
        if not len(column):
            return (1,) * width
        return tuple(int(value) + 1 for value in column.reshape(-1, width).max(axis=0))

    def held(self, ids: IntArray, pointers: bool = True) -> tuple[GraphColumns, IntArray]:
        """Returns the store that a batch of these graphs is copied from, and their positions in it.

        The columns of that store are in-memory or mapped arrays, without row pointers and transpose
        if these are not needed, and these graphs ``[g]`` were checked as by :meth:`verify`.
        """
        self.verify(ids)
        return self, ids

    @cached_property
    def _starts(self) -> IntArray:
        """``[parts + 1]``: the first graph of each store in one folder, or in memory, that this one
        consists of."""
        return np.array([0, len(self)])

    def _open(self, number: int) -> GraphColumns:
        """Returns one of these stores."""
        return self

    def _parts(self) -> list[Callable[[], GraphColumns]]:
        """Returns what opens each of them."""
        return [partial(self._open, number) for number in range(len(self._starts) - 1)]

    def _by_part(self, ids: IntArray) -> tuple[Iterable[tuple[GraphColumns, IntArray]], IntArray]:
        """Returns each part, opened in its turn, and its graphs; and their places in ``ids``."""
        return [(self, ids)], np.arange(len(ids))

    def _opened(self, first: int, last: int) -> Iterator[tuple[int, GraphColumns]]:
        """Yields the parts of graphs ``first`` to ``last - 1``, each with its first index."""
        if first < last:
            begin, end = np.searchsorted(self._starts, [first, last - 1], side="right") - 1
            for number in range(begin, end + 1):
                yield int(self._starts[number]), self._open(number)

    def _part_of(self, graph: int) -> tuple[GraphColumns, int]:
        """Returns the part that holds a graph, and the graph's index in it."""
        number = bisect_right(self._starts, graph) - 1
        return self._open(number), graph - int(self._starts[number])

    def __getitem__(self, which: SupportsIndex | slice | ArrayLike) -> Any:
        """Returns a graph as it went in, a ``Data`` or ``HeteroData``, or a list of graphs.

        Args:
            which: an index, for one graph; a slice, indices ``[n]`` or a mask ``[graphs]``, for a
                list.

        Raises:
            IndexError: if an index is out of range.
        """
        graph = one_graph(which, len(self))
        if graph is None:
            return [self[each] for each in several_graphs(which, len(self)).tolist()]
        self.verify(np.array([graph]))
        from staticgraph.store.record import graph_at  # imports torch

        return graph_at(*self._part_of(graph))

    def origin_of(self, graph: int, level: Level) -> Array | None:
        """Returns the position of each edge of one graph (as in :meth:`size`) before sorting.

        None if the edges were not moved, or the level is not one of edges.
        """
        store, graph = self._part_of(graph_number(graph, len(self)))
        origin = store.edge_origin if level == "edge" else store.origins.get(level)
        if origin is None or not len(origin):
            return None
        offsets = store.offsets_of(level)
        return origin[offsets[graph] : offsets[graph + 1]]

    def __getitems__(self, graphs: Iterable[int]) -> StoredGraphs:
        """Returns several graphs at once, unread, as torch's ``DataLoader`` fetches a batch."""
        return StoredGraphs(self, several_graphs(graphs, len(self)))

    def __iter__(self) -> Iterator[Any]:
        return (self[graph] for graph in range(len(self)))

    def rows_of(self, item: Field, graph: int) -> slice:
        """Returns the rows of a field's column that belong to one graph (as in :meth:`size`)."""
        graph = graph_number(graph, len(self))
        if item.level == "graph":
            return slice(graph * item.rows, (graph + 1) * item.rows)
        offsets = self.offsets_of(item.level)
        return slice(int(offsets[graph]), int(offsets[graph + 1]))

    def bounds_of_ranks(self, world_size: int) -> IntArray:
        """Returns ``[world_size + 1]``: where each rank's graphs begin, divided evenly.

        Raises:
            BadGraph: if there are fewer graphs than ranks.
        """
        if len(self) < world_size:
            raise BadGraph(
                f"{self.name} has {how_many(len(self), 'graph')} for "
                f"{how_many(world_size, 'rank')}, each of which needs one: use fewer processes"
            )
        return np.arange(world_size + 1) * len(self) // world_size

    def __repr__(self) -> str:
        described = [f"{item.name}: {item.describe()}" for item in self.schema]
        fields = ", ".join([*described, *(f"{name}: on the host" for name in self.objects)])
        nodes, edges = (self.narrow_sizes[:, c].sum(dtype=np.int64) for c in (0, 1))
        parts = len(self._parts())
        shards = f" in {how_many(parts, 'shard')}" if parts > 1 else ""
        return (
            f"GraphStore({self.name}: {how_many(len(self), 'graph')}{shards}, "
            f"{how_many(nodes, 'node')}, {how_many(edges, 'edge')}, "
            f"{self.nbytes / 2**20:.1f} MiB; {fields})"
        )


def assembled(
    kind: type[Kept],
    schema: Schema,
    arrays: Mapping[str, Array],
    *,
    name: str = "data",
    checks: Checks | None = None,
) -> Kept:
    """Builds a store from unchecked arrays, by the names of :meth:`GraphColumns.arrays`."""
    parts: dict[str, dict[str, Array]] = defaultdict(dict)
    for full, array in arrays.items():
        what, _, key = full.partition(".")
        parts[what][key] = array
    return kind(
        schema=schema,
        columns=parts["column"],
        splits=parts["split"],
        offsets={axis.name: parts["offsets"][axis.name] for axis in schema.axes},
        origins=parts["origins"],
        name=name,
        checks=checks,
        objects={
            key: ObjectColumn(text, parts["object_ends"][key])
            for key, text in parts["objects"].items()
        },
        **{key: arrays[key] for key in STRUCTURE},  # type: ignore[arg-type]
    )


class StoredGraphs(Sequence[Any]):
    """Some graphs ``[g]`` int64 of a store, each assembled when it is read."""

    def __init__(self, store: GraphColumns, graphs: IntArray) -> None:
        self.store = store
        self.graphs = graphs

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return StoredGraphs(self.store, self.graphs[which])
        return self.store[int(self.graphs[which])]
