"""A data set of many graphs as flat columns, ready to be copied into batches.

Problem: a list of PyG ``Data`` objects costs tens of microseconds a graph to batch, because each of
its tensors is a Python object of its own. Idea: one array per attribute over all graphs, with
offsets that say where each graph begins; a batch is then a handful of block copies. Columns are
kept in the smallest dtype that holds their values exactly (atom features that PyG keeps in int64
fit a byte) and widened while a batch is filled. Edges are sorted by destination, graph by graph,
with row pointers and the permutation that sorts them by source, so that sums over neighbours need
no atomics.

Invariant: ``store[i]`` is the graph that went in, edges in their first order, dtypes as they were.
What it does not do: it never changes; to add graphs, build another. On disk a store is one folder
of ``.npy`` files, memory-mapped when loaded, and a manifest with version and checksums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from staticgraph.errors import BadGraph
from staticgraph.schema import Field, Level, Schema
from staticgraph.sizes import GraphSize, IntArray, SizeHistogram
from staticgraph.store.columns import (
    Array,
    check_endpoints,
    checked_columns,
    checked_offsets,
    checked_splits,
    compact,
    local_positions,
    require_finite,
    row_pointers,
    sort_by_destination,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True, eq=False)
class GraphStore:
    """Graphs as columns. Build one with :meth:`from_pyg`, :meth:`from_arrays` or :meth:`load`.

    Attributes:
        schema: the fields and the dtypes a model sees.
        node_offsets: ``[n + 1]`` int64, where each graph's nodes begin in the node columns.
        edge_offsets: ``[n + 1]`` int64, likewise for edges.
        edge_src: ``[sum e]``, source of each edge, counted within its graph (compact dtype).
        edge_dst: ``[sum e]``, destination, ascending within each graph.
        row_ptr: ``[sum n + 1]``, where each node's incoming edges begin among all edges.
        transpose: ``[sum e]``, per graph the permutation that sorts its edges by source (stable).
        edge_origin: ``[sum e]``, where each edge stood before sorting; empty if they were sorted.
        columns: one array a field, ``[rows of its level, *shape]``, in a compact dtype.
        splits: named lists of graph numbers, such as ``train``, where the data set has them.
        name: what error messages and tables call it.
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

    # ------------------------------------------------------------------ building

    @classmethod
    def from_pyg(cls, dataset: Any, **options: Any) -> GraphStore:
        """Stores a PyG data set, or ``Data``; see :func:`staticgraph.store.flatten.from_pyg`."""
        from staticgraph.store.flatten import from_pyg

        return from_pyg(dataset, **options)

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
    ) -> GraphStore:
        """Builds a store from flat arrays over all graphs.

        Args:
            num_nodes: ``[n]`` nodes of each graph.
            num_edges: ``[n]`` directed edges of each graph (an undirected one counts twice).
            edge_src: ``[sum e]`` source of each edge, numbered within its graph, in any order.
            edge_dst: ``[sum e]`` destination of each edge, likewise.
            fields: attribute -> (level, ``[rows of the level, *shape]``); the array's dtype is
                what a model will see, however compactly it is kept.
            rows: rows a graph of graph-level attributes that have more than one.
            splits: named lists of graph numbers.
            name: what error messages call the data set.
            check_finite: refuse NaN and infinity in every floating field but ``y``, or in those
                named.

        Raises:
            BadGraph: no graph at all, an edge outside its graph, a column of the wrong length, or
                a value that is not finite where that is checked; the message names the graph.
            ValueError: a field has a name that every batch uses itself.
        """
        node_offsets, edge_offsets = checked_offsets(num_nodes, num_edges, name)
        src, dst = np.asarray(edge_src), np.asarray(edge_dst)
        if src.dtype.kind not in "iu" or dst.dtype.kind not in "iu":
            raise BadGraph(f"{name}: edges are {src.dtype} and {dst.dtype}; use whole numbers")
        if not len(src) == len(dst) == edge_offsets[-1]:
            raise BadGraph(
                f"{name}: {len(src)} sources and {len(dst)} destinations for "
                f"{edge_offsets[-1]} edges"
            )
        check_endpoints(src, dst, node_offsets, edge_offsets)
        schema, columns = checked_columns(fields, rows or {}, node_offsets, edge_offsets)
        require_finite(schema, columns, node_offsets, edge_offsets, check_finite)
        order = sort_by_destination(src, dst, node_offsets, edge_offsets)
        if order is not None:
            src, dst = src[order], dst[order]
            columns = {
                key: column[order] if schema[key].level == "edge" else column
                for key, column in columns.items()
            }
        local = np.empty(0, np.uint8) if order is None else local_positions(order, edge_offsets)
        row_ptr, transpose = row_pointers(src, dst, node_offsets, edge_offsets)
        return cls(
            schema=schema,
            node_offsets=node_offsets,
            edge_offsets=edge_offsets,
            edge_src=compact(src),
            edge_dst=compact(dst),
            row_ptr=row_ptr if edge_offsets[-1] > np.iinfo(np.int32).max else row_ptr.astype("i4"),
            transpose=compact(transpose),
            edge_origin=compact(local),
            columns={key: compact(column) for key, column in columns.items()},
            splits=checked_splits(splits or {}, len(node_offsets) - 1, name),
            name=name,
        )

    @classmethod
    def zeros(cls, schema: Schema) -> GraphStore:
        """A store of one graph, one node, no edge and zeros in every field."""
        length = {"node": 1, "edge": 0, "graph": 1}
        fields: dict[str, tuple[Level, Array]] = {
            item.name: (
                item.level,
                np.zeros((length[item.level] * item.rows, *item.shape), item.dtype),
            )
            for item in schema
        }
        none = np.empty(0, np.int64)
        rows = {item.name: item.rows for item in schema}
        return cls.from_arrays(
            np.ones(1, np.int64), np.zeros(1, np.int64), none, none, fields, rows=rows
        )

    # ------------------------------------------------------------------ on disk

    def save(self, folder: str | Path) -> None:
        """Writes the store as a folder; see :mod:`staticgraph.store.files`."""
        from staticgraph.store.files import save

        save(self, folder)

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool | None = None) -> GraphStore:
        """Opens a folder, memory-mapped; see :func:`staticgraph.store.files.load`."""
        from staticgraph.store.files import load

        return load(folder, verify=verify)

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return len(self.node_offsets) - 1

    @cached_property
    def sizes(self) -> IntArray:
        """``[n, 2]`` int64: nodes and edges of each graph, without touching a feature."""
        return np.stack([np.diff(self.node_offsets), np.diff(self.edge_offsets)], axis=1)

    @cached_property
    def histogram(self) -> SizeHistogram:
        """How many graphs have each size."""
        return SizeHistogram.from_sizes(self.sizes)

    def size(self, graph: int) -> GraphSize:
        """Nodes and edges of one graph."""
        return GraphSize(*map(int, self.sizes[graph]))

    @property
    def nbytes(self) -> int:
        """Bytes of all columns and indices."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, Array]:
        """Every array by the name of its file."""
        structure = {
            key: getattr(self, key)
            for key in (
                "node_offsets",
                "edge_offsets",
                "edge_src",
                "edge_dst",
                "row_ptr",
                "transpose",
                "edge_origin",
            )
        }
        columns = {f"column.{key}": value for key, value in self.columns.items()}
        splits = {f"split.{key}": value for key, value in self.splits.items()}
        return structure | columns | splits

    def with_splits(self, **splits: Array) -> GraphStore:
        """The same store with these named lists of graph numbers."""
        return replace(self, splits=checked_splits(splits, len(self), self.name))

    def cardinality(self, name: str) -> tuple[int, ...]:
        """One more than the largest value in each column of an integer field: the rows that an
        embedding table needs, ``(119, 4, ...)`` for OGB's atom features."""
        column = self.columns[name].reshape(len(self.columns[name]), -1)
        if not len(column):
            return (1,) * column.shape[1]
        return tuple(int(value) + 1 for value in column.max(axis=0))

    def __getitem__(self, graph: int) -> Data:
        """One graph as it came, as a PyG ``Data``: edges in their first order.

        Raises:
            IndexError: there is no graph of that number.
        """
        import torch
        from torch_geometric.data import Data

        if not -len(self) <= graph < len(self):
            raise IndexError(f"graph {graph} of {len(self)}")
        graph %= len(self)
        edges = slice(self.edge_offsets[graph], self.edge_offsets[graph + 1])
        values: dict[str, Any] = {}
        first = np.argsort(self.edge_origin[edges]) if len(self.edge_origin) else None
        pair = np.stack([self.edge_src[edges], self.edge_dst[edges]]).astype(np.int64)
        values["edge_index"] = torch.from_numpy(pair if first is None else pair[:, first])
        for item in self.schema:
            value = self.columns[item.name][self.rows_of(item, graph)].astype(item.dtype)
            if item.level == "edge" and first is not None:
                value = value[first]
            values[item.name] = torch.from_numpy(np.ascontiguousarray(value))
        return Data(num_nodes=self.size(graph).nodes, **values)

    def __iter__(self) -> Iterator[Data]:
        return (self[graph] for graph in range(len(self)))

    def rows_of(self, item: Field, graph: int) -> slice:
        """The rows of a field's column that belong to one graph."""
        if item.level == "graph":
            return slice(graph * item.rows, (graph + 1) * item.rows)
        offsets = self.node_offsets if item.level == "node" else self.edge_offsets
        return slice(int(offsets[graph]), int(offsets[graph + 1]))

    def __repr__(self) -> str:
        fields = ", ".join(f"{item.name}: {item.describe()}" for item in self.schema)
        return (
            f"GraphStore({self.name}: {len(self):,} graphs, {self.node_offsets[-1]:,} nodes, "
            f"{self.edge_offsets[-1]:,} edges, {self.nbytes / 2**20:.1f} MiB; {fields})"
        )
