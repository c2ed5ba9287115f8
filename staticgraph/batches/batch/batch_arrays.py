"""What a batch's arrays and its bucket say: sizes, levels, types, masks and counts.

Sizes, levels and types are numbers and names on the host, the same for every batch of the bucket
and known before any graph is, so a compiled step may branch on them.

When a batch is saved, pickled or deeply copied, its tensors are written, in their own memory, and
nothing of its slot. The arrays of a slot are views of one buffer in many dtypes, which
``torch.save`` refuses, and the slot belongs to the loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.slots.batch_memory import note
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import Lease, SlotLayout
from staticgraph.errors import StaleBatch
from staticgraph.schema import COUNTS, Axis, Field, Level, Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.objects import HostObjects


class BatchArrays:
    """The part of a :class:`staticgraph.StaticBatch` that is only read.

    Attributes:
        bucket: the bucket's number.
        layout: the arrays of a slot for this bucket.
        real: the real counts as host numbers, or None inside a compiled step.
    """

    __slots__ = ("_extra", "_lease", "_tensors", "bucket", "layout", "real")

    layout: SlotLayout
    bucket: int
    real: RealCounts | None
    _tensors: Mapping[str, Tensor]
    _lease: Lease | None
    _extra: Mapping[str, Any]

    def __init__(
        self,
        layout: SlotLayout,
        tensors: Mapping[str, Tensor],
        real: RealCounts | None,
        lease: Lease | None,
    ) -> None:
        put = object.__setattr__  # what subclasses make of an assignment is for a model's own
        put(self, "layout", layout)
        put(self, "bucket", layout.bucket)
        put(self, "real", real)
        put(self, "_tensors", tensors)
        put(self, "_lease", lease)
        put(self, "_extra", {})  # what a model has set under names of its own

    @property
    def capacity(self) -> Capacity:
        """The bucket's physical sizes."""
        return self.layout.capacity

    @property
    def num_nodes(self) -> int:
        """``N``, padding included."""
        return self.layout.capacity.nodes

    @property
    def num_edges(self) -> int:
        """``E``, padding included."""
        return self.layout.capacity.edges

    @property
    def num_graphs(self) -> int:
        """``G``, padding included: the size to give to pooling."""
        return self.layout.capacity.graphs

    @property
    def batch_size(self) -> int:
        """``G``, as :attr:`num_graphs`."""
        return self.layout.capacity.graphs

    def level_of(self, value: Tensor) -> Level:
        """Returns the level of a tensor's rows by its leading dimension.

        A level is nodes, edges, graphs or an axis.

        Raises:
            ValueError: the leading dimension is that of no level.
        """
        rows = value.shape[0] if value.dim() else -1
        for level, count in self.layout.rows.items():
            if rows == count:
                return level
        plural = {"graph": "graphs", "node": "nodes", "edge": "edges"}
        choices = [f"{rows} ({plural.get(name, name)})" for name, rows in self.layout.rows.items()]
        expected = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise ValueError(
            f"a tensor of shape {list(value.shape)} has no rows of this batch: expected a leading "
            f"size of {expected}"
        )

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels that the rows of a tensor of this batch can have."""
        return tuple(self.layout.rows)

    @property
    def node_types(self) -> list[str]:
        """The node types; empty if there is only one kind of node."""
        return [axis.key for axis in self.layout.schema.node_axes]

    @property
    def edge_types(self) -> list[tuple[str, str, str]]:
        """The edge types; empty if there is only one kind of node."""
        return [axis.key for axis in self.layout.schema.edge_axes]

    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Returns node types and edge types, as PyG's ``HeteroData`` does."""
        return self.node_types, self.edge_types

    @property
    def num_real_nodes(self) -> Tensor:
        """The number of real nodes, 0-dim int64 on the device."""
        return self._tensors[COUNTS][0]

    @property
    def num_real_edges(self) -> Tensor:
        """The number of real edges, 0-dim int64 on the device."""
        return self._tensors[COUNTS][1]

    @property
    def num_real_graphs(self) -> Tensor:
        """The number of real graphs, 0-dim int64 on the device."""
        return self._tensors[COUNTS][2]

    @property
    def buffer(self) -> Tensor | None:
        """The single buffer that all tensors of a loader's batch are views of, ``[nbytes]`` uint8.

        None if a tensor was replaced or has its own memory.
        """
        views = None if self._lease is None else self._lease.slot.views.get(self.bucket)
        return views.whole if views is not None and self._tensors is views.tensors else None

    @property
    def num_node_features(self) -> int | dict[str, int]:
        """The number of columns of ``x``, 0 without ``x``; by type, if nodes have types."""
        return self._columns("x", self.layout.schema.node_axes)

    num_features = num_node_features

    @property
    def num_edge_features(self) -> int | dict[tuple[str, str, str], int]:
        """The number of columns of ``edge_attr``, 0 without it; by type, if nodes have types."""
        return self._columns("edge_attr", self.layout.schema.edge_axes)

    def _columns(self, field: str, axes: Iterable[Axis]) -> Any:
        def count_columns(name: str) -> int:
            value = self._tensors.get(name)
            return 0 if value is None else 1 if value.dim() == 1 else value.size(-1)

        if self.layout.schema.hetero:
            return {axis.key: count_columns(f"{axis.name}.{field}") for axis in axes}
        return count_columns(field)

    @property
    def device(self) -> torch.device:
        """The device that the tensors are on."""
        # The mapping's own attribute, if any, does not trigger making the arrays.
        return getattr(self._tensors, "device", None) or self._tensors["graph_ids"].device

    def _check_lease(self) -> None:
        lease = self._lease
        if lease is not None and lease.generation != lease.slot.generation:
            raise StaleBatch(
                f"this batch of bucket {self.bucket} gave its slot back, and the slot has been or "
                "will be filled with other graphs: use a batch before release(), or keep a copy "
                "with batch.clone()"
            )

    def tensors(self) -> Mapping[str, Tensor]:
        """Returns all tensors by name, including the counts of real rows, in the layout's order."""
        self._check_lease()
        return self._tensors

    @property
    def node_masks(self) -> dict[str, Tensor]:
        """``{node type: [rows] bool}``, True on real rows, if nodes have types."""
        schema = self.layout.schema
        return {axis.key: self._tensors[f"{axis.name}_mask"] for axis in schema.node_axes}

    @property
    def edge_masks(self) -> dict[tuple[str, str, str], Tensor]:
        """``{edge type: [rows] bool}``, True on real rows, if nodes have types."""
        schema = self.layout.schema
        return {axis.key: self._tensors[f"{axis.name}_mask"] for axis in schema.edge_axes}

    def mask_of(self, value: Tensor) -> Tensor:
        """Returns the mask that fits a tensor's rows; see :meth:`level_of`."""
        return self._tensors[f"{self.level_of(value)}_mask"]

    @property
    def real_nodes(self) -> int:
        """The number of real nodes on the host; see :attr:`real_graphs`."""
        return self.real_counts.nodes

    @property
    def real_edges(self) -> int:
        """The number of real edges on the host; see :attr:`real_graphs`."""
        return self.real_counts.edges

    @property
    def real_graphs(self) -> int:
        """The number of real graphs on the host, as in ``out[: batch.real_graphs]``.

        Raises:
            RuntimeError: inside a compiled step, which does not know it.
        """
        return self.real_counts.graphs

    @property
    def real_counts(self) -> RealCounts:
        """The real counts as host numbers; RuntimeError inside a compiled step."""
        if self.real is None:
            raise RuntimeError(
                "a compiled step does not know the real counts: use the masks, or "
                "batch.num_real_graphs, a tensor"
            )
        return self.real


def looked_in_epoch(batch: BatchArrays) -> set[int] | None:
    """The numbers of the recordings that have checked the model in a batch's epoch.

    See ``looked`` of :class:`staticgraph.batches.slots.slots.SlotPool`; None for a batch that is
    not from a loader.
    """
    lease = batch._lease
    return None if lease is None else lease.pool.looked


def loader_of(batch: BatchArrays) -> Mapping[str, Any] | None:
    """The settings of the loader that a batch is from, one object per epoch; None without."""
    lease = batch._lease
    return None if lease is None else lease.pool.loader


def wide_mask(mask: Tensor, value: Tensor) -> Tensor:
    """Returns a mask of rows ``[R]`` that broadcasts over a tensor ``[R, ...]``."""
    return mask.view(-1, *(1,) * (value.dim() - 1))


def field_mask(batch: BatchArrays, field: Field) -> Tensor:
    """``[rows of the field]`` bool: its level's mask, each entry ``field.rows`` times."""
    mask = batch.tensors()[f"{field.level}_mask"]
    return mask if field.rows == 1 else mask.repeat_interleave(field.rows)


_INDICES = ("edge_index", "batch")


def state_of(
    batch: BatchArrays,
    real: RealCounts | None,
    objects: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns what is needed to rebuild the batch with its own memory.

    Args:
        batch: its tensors are copied.
        real: its real counts, if known.
        objects: its strings and objects per graph, and where its edges were before sorting.
        extra: the attributes that were set on it.

    Raises:
        StaleBatch: its slot was given back.
    """
    whole, tensors = whole_of(batch), batch.tensors().items()
    alone = {name: _alone(tensor) for name, tensor in tensors} if whole is None else whole.clone()
    return {
        "layout": batch.layout,
        "tensors": alone,
        "real": real,
        "objects": HostObjects(objects, moved_edges(batch.layout.schema, objects)),
        "extra": {
            name: _alone(value) if type(value) is Tensor else value for name, value in extra.items()
        },
    }


def moved_edges(schema: Schema, objects: Mapping[str, Any]) -> dict[str, IntArray]:
    """Returns edge level -> which row each edge was before sorting, where any was moved."""
    places = getattr(objects, "places", None)
    if places is None:
        return {}
    levels = [axis.name for axis in schema.edge_axes] or ["edge"]
    return {level: place for level in levels if (place := places(level)) is not None}


def whole_of(batch: BatchArrays) -> Tensor | None:
    """Returns the memory of all tensors of a batch, and of nothing else, as uint8; None if a
    tensor was replaced, needs a gradient, or stands in a slot of several buckets, and in a trace,
    which reads no memory."""
    if torch.compiler.is_compiling():
        return None
    layout, tensors = batch.layout, batch.tensors()
    first = next(iter(tensors.values()))
    memory = first.untyped_storage()
    if (
        memory.nbytes() != layout.nbytes
        or [entry.name for entry in layout.entries] != list(tensors)
        or any(
            each.untyped_storage().data_ptr() != memory.data_ptr() or each.requires_grad
            for each in tensors.values()
        )
    ):
        return None
    return torch.empty(0, dtype=torch.uint8, device=first.device).set_(memory)


def note_indices(batch: BatchArrays) -> None:
    """Notes the memory of a copy's index arrays as a batch's.

    See :func:`staticgraph.batches.slots.batch_memory.note`.
    """
    if torch.compiler.is_compiling():  # a copy that a traced forward makes
        return
    for name, tensor in batch.tensors().items():
        if name in _INDICES or name.endswith(".edge_index"):
            note(tensor, batch.layout.lengths)


def _alone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
