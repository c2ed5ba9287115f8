"""The rows of a batch of any class, and how they get into the fixed shapes of a bucket.

A :class:`BatchRows` is what all sources have in common once they are read: the tensors under the
names that a :class:`staticgraph.StaticBatch` gives them, with indices that already count rows of
the whole batch, and which graph each row belongs to. Writing it is a copy per tensor; masks and
padding are those of every other batch (:func:`staticgraph.batches.collation.collate.pad_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch, filled
from staticgraph.batches.collation.collate import pad_rows
from staticgraph.batches.slots.batch_memory import note
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import BadGraph
from staticgraph.schema import EDGE_INDEX, ORDERS, Field, Schema, dtype_name
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import sort_by_destination
from staticgraph.store.graph_columns import StoredGraphs
from staticgraph.store.indices import counted
from staticgraph.store.objects import HostObjects

_CPU = torch.device("cpu")


class StoredRows:
    """The rows of some graphs of a store, which are copied from its columns."""

    device: torch.device = _CPU

    def __init__(self, graphs: StoredGraphs) -> None:
        self._graphs = graphs
        sizes = graphs.store.sizes[graphs.graphs]
        nodes, edges, *more = sizes.sum(axis=0).tolist()
        names = graphs.store.schema.components[2:]
        largest = int(sizes[:, 0].max()) if len(sizes) else 0
        extra = tuple(zip(names, more, strict=True))
        self.real: RealCounts = RealCounts(nodes, edges, len(sizes), largest, extra)

    def part(self, first: int, last: int) -> StoredRows:
        """Returns the graphs ``first`` to ``last`` (exclusive) alone."""
        return StoredRows(self._graphs[first:last])

    def padded(self, layout: SlotLayout) -> StaticBatch:
        """Returns the graphs in a bucket's shapes.

        Raises:
            BadGraph: the store has other fields, or edges in another order.
        """
        store, schema = self._graphs.store, layout.schema
        layouts = {field.layout for field in store.schema}
        if schema is not store.schema and layouts != {field.layout for field in schema}:
            raise BadGraph(
                f"{store.name} has other fields than the plan's batches: make the plan for it, "
                "sg.plan_stream(store, ...)"
            )
        if schema.one_kind and schema.keep_order is not store.schema.keep_order:
            raise BadGraph(
                f"the edges of {store.name} are {ORDERS[store.schema.keep_order]}, those of the "
                f"plan's batches {ORDERS[schema.keep_order]}: make the plan for it, "
                "sg.plan_stream(store, ...)"
            )
        return filled(layout, self._graphs.store, self._graphs.graphs)


@dataclass(frozen=True, eq=False)
class BatchRows:
    """The rows of a batch.

    Attributes:
        schema: the fields.
        values: array name -> tensor: the fields, and ``edge_index`` if it joins nodes of one kind.
            Index values count the rows of the batch.
        node_ptr: ``[g + 1]`` int64, where the nodes of each graph begin.
        owners: level -> ``[rows]`` int64, the graph of each row, ascending, for every axis; and of
            the nodes of a bipartite graph.
        edges: the number of edges.
        objects: strings and other objects, a list of one per graph for each name, and where edges
            were before they were sorted.
        device: where the tensors came from.
        first: the number of its first graph in the batch that it is a part of.
    """

    schema: Schema
    values: Mapping[str, Tensor]
    node_ptr: IntArray
    owners: Mapping[str, IntArray]
    edges: int
    objects: HostObjects = field(default_factory=HostObjects)
    device: torch.device = _CPU
    first: int = 0

    @cached_property
    def real(self) -> RealCounts:
        """How many rows of each level there are."""
        sizes = np.diff(self.node_ptr)
        extra = tuple((axis.name, len(self.owners[axis.name])) for axis in self.schema.axes)
        most = int(sizes.max()) if len(sizes) else 0
        return RealCounts(int(self.node_ptr[-1]), self.edges, len(sizes), most, extra)

    def part(self, first: int, last: int) -> BatchRows:
        """Returns the graphs ``first`` to ``last`` (exclusive) alone.

        Raises:
            BadGraph: the rows of a level are not grouped by graph.
        """
        levels = ("node", "edge", *(axis.name for axis in self.schema.axes))
        bounds = {level: self._bounds(level)[[first, last]] for level in levels}
        bounds["graph"] = np.array([first, last])
        values = {}
        for name, value in self.values.items():
            shape = _field_of(self.schema, name)
            start, end = (bounds[shape.level] * shape.rows).tolist()
            dim = shape.cat_dim or 0
            rows = value.narrow(dim, start, end - start)
            if shape.counts:
                begin = {level: int(bounds[level][0]) for level in shape.counts if level}
                rows = _lowered(rows, shape, begin)
            values[name] = rows
        return replace(
            self,
            values=values,
            node_ptr=self.node_ptr[first : last + 1] - self.node_ptr[first],
            owners={
                level: owner[slice(*bounds[level].tolist())] - first
                for level, owner in self.owners.items()
            },
            edges=int(np.diff(bounds["edge"])[0]),
            objects=HostObjects(
                {name: each[first:last] for name, each in self.objects.items()},
                {
                    level: place[slice(*bounds[level].tolist())] - bounds[level][0]
                    for level, place in self.objects.moved.items()
                },
            ),
            first=self.first + first,
        )

    def _bounds(self, level: str) -> IntArray:
        """``[g + 1]``: where the rows of each graph begin."""
        if level == "node":
            return self.node_ptr
        owner = self._edge_owner if level == "edge" else self.owners[level]
        if (np.diff(owner) < 0).any():
            raise BadGraph(
                f"the batch is to be split, and its rows of level {level!r} are not grouped by "
                "graph: sort them by graph, or use overflow='grow'"
            )
        return np.searchsorted(owner, np.arange(len(self.node_ptr)))

    @cached_property
    def _edge_owner(self) -> IntArray:
        return np.searchsorted(self.node_ptr, self.values[EDGE_INDEX][1].numpy(), "right") - 1

    def sorted_by_destination(self) -> BatchRows:
        """Returns the same batch with its edges as a store sorts them, unless the schema keeps
        their order.

        Raises:
            BadGraph: a tensor has not a row for each edge, or an edge joins what is no node.
        """
        if self.schema.keep_order or not self.schema.one_kind or not self.edges:
            return self
        index = self.values[EDGE_INDEX]
        if bool((index[1].diff() >= 0).all()):
            return self
        of_edges = [each for each in self.schema if each.level == "edge"]
        for each in (_EDGES, *of_edges):
            self._check(each)
        whole = np.array([0, self.real.nodes]), np.array([0, self.edges])
        order = sort_by_destination(index[1].numpy(), *whole)
        if order is None:
            return self
        places = torch.from_numpy(np.ascontiguousarray(order, np.int64))
        values = dict(self.values)
        values[EDGE_INDEX] = index[:, places]
        for each in of_edges:
            values[each.name] = values[each.name].index_select(each.cat_dim or 0, places)
        objects = HostObjects(self.objects, {"edge": places.numpy()})
        return replace(self, values=values, objects=objects)

    def _check(self, shape: Field) -> None:
        """Refuses a tensor that is not as its field is, or an index that names no row."""
        value, real = self.values[shape.name], self.real
        if shape.counts and value.dim():
            _check_range(value, shape, real)
        dtype, physical = dtype_name(value), shape.physical(real.of(shape.level) * shape.rows)
        if shape is not _EDGES and (tuple(value.shape), dtype) != (physical, shape.dtype):
            raise BadGraph(
                f"{shape.name!r} is {dtype} {list(value.shape)}, and the plan's batches "
                f"have {shape.dtype} {list(physical)} for {real}: give it so, or make a plan for "
                "this data"
            )

    def padded(self, layout: SlotLayout) -> StaticBatch:
        """Returns the batch in a bucket's shapes, in newly allocated memory on the host.

        Raises:
            BadGraph: a tensor has another dtype or width than the field, or an index names a row
                that the batch does not have.
        """
        buffer = torch.empty(layout.nbytes, dtype=torch.uint8)
        tensors = layout.tensors(buffer)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        real = self.real
        graphs = real.graphs
        arrays["graph_ids"][:graphs] = np.arange(self.first, self.first + graphs)
        arrays["ptr"][: graphs + 1] = self.node_ptr
        arrays["batch"][: real.nodes] = owners_of(self.node_ptr)
        for level in layout.axes:
            owner = self.owners[level]
            arrays[f"{level}_batch"][: len(owner)] = owner
            places = np.searchsorted(np.sort(owner), np.arange(graphs))
            arrays[f"{level}_ptr"][:graphs] = places
        for each in self.schema:
            self._check(each)
            rows = real.of(each.level) * each.rows
            tensors[each.name].narrow(each.cat_dim or 0, 0, rows).copy_(self.values[each.name])
        if self.schema.one_kind and self.edges:
            self._check(_EDGES)
            tensors[EDGE_INDEX][:, : real.edges].copy_(self.values[EDGE_INDEX])
        pad_rows(layout, arrays, real)
        note(buffer, layout.lengths)
        return StaticBatch(layout, tensors, real, objects=self.objects)


# What a padder asks for rows.
Rows = StoredRows | BatchRows
# What ``edge_index`` is where it is not a field.
_EDGES = Field(EDGE_INDEX, "edge", (2,), "int64", cat_dim=1, counts=("node",))


def _field_of(schema: Schema, name: str) -> Field:
    return next((field for field in schema if field.name == name), _EDGES)


def _check_range(index: Tensor, shape: Field, real: RealCounts) -> None:
    """Refuses an index outside the batch, which would read rows of padding.

    Raises:
        BadGraph: there is one; it is named.
    """
    moved = index.movedim(shape.cat_dim or 0, 0)
    flat = moved.reshape(len(moved), shape.width)
    for place, level in counted(shape):
        column, rows = flat[:, place], real.of(level)
        if len(column) and (int(column.min()) < 0 or int(column.max()) >= rows):
            row = int(((column < 0) | (column >= rows)).nonzero()[0, 0])
            raise BadGraph(
                f"{shape.name!r} has {int(column[row])} at {row}, and the batch has {rows} rows of "
                f"{level}, from 0: fix the index"
            )


def _lowered(rows: Tensor, shape: Field, begin: Mapping[str, int]) -> Tensor:
    """Returns index rows with their values lowered by the first row of what they count."""
    moved = rows.movedim(shape.cat_dim or 0, 0)
    flat = moved.reshape(len(moved), shape.width).clone()
    for place, level in counted(shape):
        flat[:, place] -= begin[level]
    return flat.view(moved.shape).movedim(0, shape.cat_dim or 0)


def owners_of(ptr: Sequence[int] | Tensor | IntArray) -> IntArray:
    """Returns the graph of each row, by where the rows of each graph begin."""
    bounds = np.asarray(ptr, np.int64)
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
