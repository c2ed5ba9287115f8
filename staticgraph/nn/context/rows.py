"""What the rows of a tensor are, judged by its leading size: the initial register of a batch.

Whether a size is the batch's at all, and not that of a tensor of the model's own, is decided in
:mod:`staticgraph.nn.context.row_queries`.

The physical sizes of a bucket all differ, so a size says whether rows are nodes, edges, graphs, the
rows of an axis, or the nodes or edges of one type. Layers that put all types into one tensor
(HGTConv, ``to_homogeneous``) make rows of their sum; the planner keeps that sum distinct as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.schema import EDGE_INDEX, Axis


class RowKind(NamedTuple):
    """What the rows of a tensor with a certain leading size are.

    Attributes:
        what: a word for messages.
        mask: ``[R]`` bool, True on real rows.
        groups: how many groups an index over these rows names (nodes name graphs, edges name nodes,
            edges between two types name nodes of the destination type); None where there is no
            level above.
        counted: the level in :class:`RealCounts` whose rows these are, real ones first; None for
            rows that the batch did not come with.
        widest: the most real rows that a group can have; None if unbounded.
        ends: how many rows an index ``[2, R]`` over these names, if that is not ``groups``: an
            axis's own vector names graphs, its index fields mostly nodes. 0 if unknown.
    """

    what: str
    mask: Tensor
    groups: int | None
    counted: str | None = None
    widest: int | None = None
    ends: int | None = None


class SizeRegister:
    """Values by a size.

    It compares sizes and never hashes them, because a hash would fix the number of a size that a
    trace keeps symbolic.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[int, Any]] = []

    def get(self, size: int) -> Any:
        """The value of a size, None if it has none."""
        for known, value in self.entries:
            if known == size:
                return value
        return None

    def set(self, size: int, value: Any) -> None:
        """Replaces the value of a size."""
        self.entries = [entry for entry in self.entries if entry[0] != size]
        self.entries.append((size, value))


def rows_of_batch(batch: StaticBatch) -> SizeRegister:
    """Returns the meaning (:class:`RowKind`) of every row count that a batch comes with."""
    graphs, schema = batch.num_graphs, batch.layout.schema
    rows = SizeRegister()
    if schema.hetero:
        for axes, what, groups in (
            (schema.edge_axes, "edges of all types", None),
            (schema.node_axes, "nodes of all types", graphs),
        ):
            total = sum(batch.capacity.rows(axis.name) for axis in axes)
            if len(axes) > 1:
                masks = [batch[f"{axis.name}_mask"] for axis in axes]
                rows.set(total, RowKind(what, torch.cat(masks), groups))
        nodes = sum(batch.capacity.rows(axis.name) for axis in schema.node_axes)
        edges = sum(batch.capacity.rows(axis.name) for axis in schema.edge_axes)
        if (kind := rows.get(edges)) is not None:
            rows.set(edges, kind._replace(groups=nodes))
    else:
        widest = batch.capacity.max_graph_nodes
        rows.set(batch.num_edges, _rows_of_edges(batch))
        rows.set(batch.num_nodes, RowKind("nodes", batch.node_mask, graphs, "node", widest))
    for axis in schema.axes:
        rows.set(batch.capacity.rows(axis.name), _rows_of_axis(batch, axis))
    rows.set(graphs, RowKind("graphs", batch.graph_mask, None, "graph"))
    return rows


def _rows_of_edges(batch: StaticBatch) -> RowKind:
    """Edges of one kind; if they join two different levels, no single number of nodes is right."""
    schema = batch.layout.schema
    groups, ends = batch.num_nodes, None
    if schema.two_sided:
        source, target = schema[EDGE_INDEX].counts
        groups, ends = batch.capacity.rows(target), None if source == target else 0
    return RowKind("edges", batch.edge_mask, groups, "edge", ends=ends)


def _rows_of_axis(batch: StaticBatch, axis: Axis) -> RowKind:
    mask = batch[f"{axis.name}_mask"]
    if axis.kind == "edge":
        return RowKind(f"edges {axis.key}", mask, batch.capacity.rows(axis.type[2]), axis.name)
    what = f"nodes {axis.key!r}" if axis.kind == "node" else axis.name
    widest = batch.capacity.max_graph_nodes if axis.kind == "node" else None
    return RowKind(what, mask, batch.num_graphs, axis.name, widest, _ends(batch, axis))


def _ends(batch: StaticBatch, axis: Axis) -> int | None:
    """The rows that the ``[2, R]`` index fields of an axis refer to; 0 if they refer to several."""
    if axis.kind != "rows":
        return None
    fields = [f for f in batch.layout.schema if f.level == axis.name and f.is_index]
    counted = {level for f in fields if f.shape == (2,) for level in f.counts}
    return batch.capacity.rows(counted.pop()) if len(counted) == 1 else 0
