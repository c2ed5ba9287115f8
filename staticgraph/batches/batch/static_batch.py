"""A batch of fixed shape: PyG's attribute names, and masks that say which rows are real.

A model that reads ``data.x``, ``data.edge_index`` and ``data.batch`` finds them here as well;
unlike in a PyG ``Batch``, every tensor has the bucket's physical size, real rows first. The loader
makes these batches and the runner consumes them; neither knows of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.batch_arrays import (
    BatchArrays,
    moved_edges,
    note_indices,
    state_of,
    whole_of,
)
from staticgraph.batches.batch.derived_attributes import (
    TypeView,
    axis_of,
    by_type,
    derived,
    exchanged,
)
from staticgraph.batches.batch.predictions import to_data_list, unpadded
from staticgraph.batches.collation.collate import fill
from staticgraph.batches.slots.batch_memory import note
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import Lease, SlotLayout
from staticgraph.schema import COUNTS, OPTIONAL, PRIVATE, Level
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.positions import several_graphs

_COUNTED = ("num_real_nodes", "num_real_edges", "num_real_graphs")
_SIZES = ("num_nodes", "num_edges", "num_graphs", "batch_size")
# The attribute of classes whose objects are a ``Batch`` to ``isinstance``, once PyG is in use.
STANDS_IN = "_stands_in_for_batch"


class StaticBatch(BatchArrays):
    """Tensors of one bucket's shapes, made by a :class:`StaticLoader` or with :meth:`of`.

    Attributes (``N, E, G`` are the bucket's physical sizes):
        x, edge_attr, y, ...: the fields of the dataset, ``[N, ...]``, ``[E, ...]``, ``[G, ...]``.
        edge_index: ``[2, E]`` int64; batch: ``[N]`` int64; ptr: ``[G + 1]`` int64.
        node_mask, edge_mask, graph_mask: ``[N]``, ``[E]``, ``[G]`` bool, True on real rows.
        graph_ids: ``[G]`` int64, positions in the store, -1 on padding graphs.
        row_ptr, col_ptr, transpose: the edges by node, if requested; see :class:`SlotLayout`.
        num_nodes, num_edges, num_graphs, batch_size: ``N, E, G, G`` as Python numbers.
        num_real_nodes, num_real_edges, num_real_graphs: 0-dim int64 tensors on the device.
        real_nodes, real_edges, real_graphs: the same as Python numbers, outside a compiled step.
        bucket: the number of the bucket; capacity: its sizes.
        real: the real counts as host numbers, or None inside a compiled step.

    Strings and other per-graph objects (``batch.smiles``) are lists on the host, one entry per real
    graph, in order; a compiled step has none. ``x_batch`` and ``x_ptr`` of a field ``x`` are what
    PyG's ``follow_batch`` gives. What PyG's ``Data`` has as None where a data set lacks it
    (``batch.pos``, ``batch.edge_attr``) is None here, too, and ``isinstance(batch, Batch)`` and
    ``isinstance(batch, Data)`` are True once a model was converted.

    A dataset's own kind of rows (an axis ``a``) comes with ``a_mask``, ``a_batch`` and ``a_ptr``.
    If nodes have types, there are ``x_dict``, ``edge_index_dict``, ``batch_dict``,
    ``batch["type"].x`` and :attr:`node_masks` instead of ``x``, ``edge_index``, ``batch`` and the
    masks of nodes and edges; fields of graphs stay the same.

    A loader reuses the memory of its batches: once one is dropped, a later one is written to it.
    Keep tensors with :meth:`clone`; ``torch.save`` and pickle write copies.

    A model may set attributes, as on PyG's batch (``batch.x = layer(batch.x)``, ``batch.pair =
    ...``): this replaces a tensor in this object, and never writes to its memory. The runner gives
    each forward its own object, so the loader's batch stays unchanged. Anything set under a name
    that is not in the layout is not an input of a step.
    """

    _stands_in_for_batch = True

    __slots__ = ("_objects",)

    def __init__(
        self,
        layout: SlotLayout,
        tensors: Mapping[str, Tensor],
        real: RealCounts | None = None,
        lease: Lease | None = None,
        objects: Mapping[str, list[Any]] | None = None,
    ) -> None:
        super().__init__(layout, tensors, real, lease)
        object.__setattr__(self, "_objects", {} if objects is None else objects)

    @classmethod
    def of(
        cls,
        store: GraphColumns,
        ids: Iterable[int],
        capacity: Capacity | tuple[int, ...],
        bucket: int = 0,
        pointers: bool = False,
    ) -> StaticBatch:
        """Pads graphs of a store (numbers, or a mask) into newly allocated CPU memory.

        Raises:
            GraphTooLarge: together they exceed the capacity.
            IndexError: there is no graph with such a number, or a mask has another length.
        """
        capacity = capacity if isinstance(capacity, Capacity) else Capacity.of(capacity)
        return filled(SlotLayout(bucket, capacity, store.schema, pointers), store, ids)

    @classmethod
    def blank(cls, layout: SlotLayout, device: str | torch.device = "cpu") -> StaticBatch:
        """Makes a batch of padding alone, without real counts.

        A compiled step is warmed up with it before any data is read.
        """
        padding = filled(layout, GraphColumns.zeros(layout.schema), ()).to(device)
        return cls(layout, padding.tensors())

    def release(self) -> None:
        """Gives the memory back before the batch is dropped; any later use raises.

        Does nothing for a batch that has its own memory.
        """
        if self._lease is not None:
            self._lease.give_back()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._check_lease()
        if name in self._tensors:
            return self._tensors[name]
        if name in self._extra:
            return self._extra[name]
        if name in self._objects:
            return self._objects[name]
        value = derived(self, name)
        if value is not None or (name in OPTIONAL and not self.layout.schema.hetero):
            return value
        raise AttributeError(
            f"the batch has no {name!r}; it has {', '.join(self.keys())} (lists and dicts of "
            "tensors are left out: give each tensor a field of its own)"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        elif name in _COUNTED or name in _SIZES or hasattr(StaticBatch, name):
            raise AttributeError(
                f"{name!r} of a static batch follows from its bucket and cannot be set: choose "
                "another name"
            )
        elif name.startswith(PRIVATE):
            raise AttributeError(
                f"{name!r}: a static batch keeps names that begin with {PRIVATE!r} for itself; "
                "choose another name"
            )
        elif name in self._tensors:  # a new mapping: all batches of a slot share the slot's mapping
            self._tensors = exchanged(self._tensors, {name: value})
        else:
            self._extra = {**self._extra, name: value}

    def __delattr__(self, name: str) -> None:
        if name not in self.layout.schema and name not in self._extra:
            raise AttributeError(f"{name!r} of a static batch cannot be deleted: it is no field")
        self._tensors = {key: value for key, value in self._tensors.items() if key != name}
        self._extra = {key: value for key, value in self._extra.items() if key != name}

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, int):
            raise TypeError(
                f"batch[{name!r}]: graphs are not read by number inside a forward; "
                "outside of it, batch.to_data_list() gives them"
            )
        if name not in self._tensors and self.layout.schema.hetero:
            axis = axis_of(self.layout.schema, name)
            if axis is not None:
                return TypeView(self, axis)
        if name in OPTIONAL and name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or name in self._extra or name in self._objects

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the attribute of this name, or ``default``."""
        value = getattr(self, name, None)
        return default if value is None else value

    def keys(self) -> list[str]:
        """Returns the names of the tensors, of objects on the host, and of what was set."""
        names = dict.fromkeys((*self._tensors, *self._objects, *self._extra))
        return [name for name in names if name != COUNTS]

    def argument(self, name: str) -> Any:
        """Returns the argument for a model's parameter of this name; None if the batch has none."""
        if name in self._tensors or name in _COUNTED or name in _SIZES:
            return getattr(self, name)
        value = derived(self, name)
        if value is None and self.layout.schema.hetero:
            value = by_type(self, name)
        return value

    def replace(self, **tensors: Tensor) -> StaticBatch:
        """Returns the same batch with some tensors replaced.

        Without any, returns a new object over the same memory, on which a model may set attributes.
        """
        return self.with_tensors(exchanged(self._tensors, tensors) if tensors else self._tensors)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> StaticBatch:
        """Returns the same batch over another mapping of its tensors, under the same names."""
        other = StaticBatch(self.layout, tensors, self.real, self._lease, self._objects)
        object.__setattr__(other, "_extra", self._extra)
        return other

    def without_pointers(self) -> StaticBatch:
        """Returns the same batch without row pointers, for a model that does not read them."""
        if not self.layout.pointers:
            return self
        layout = self.layout.counterpart
        tensors = {entry.name: self._tensors[entry.name] for entry in layout.entries}
        return StaticBatch(layout, tensors, self.real, self._lease, self._objects)

    def clone(self) -> StaticBatch:
        """Returns a copy with its own memory."""
        return self._moved(self.device, copy=True)

    def to(self, device: str | torch.device, non_blocking: bool = False) -> StaticBatch:
        """Returns the batch on another device; itself if it is already there."""
        target = torch.device(device)
        same = target.type == self.device.type and target.index in (None, self.device.index)
        return self if same else self._moved(target, False, non_blocking)

    def cpu(self) -> StaticBatch:
        """Returns the batch on the host."""
        return self.to("cpu")

    def cuda(self, device: int | str | torch.device | None = None) -> StaticBatch:
        """Returns the batch on a CUDA device; on the current one if None."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device or "cuda")

    def __copy__(self) -> StaticBatch:
        return self.replace()

    def __deepcopy__(self, memo: dict[int, Any]) -> StaticBatch:
        return self.clone()

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self, self.real, self._objects, self._extra)

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors = state["tensors"]
        if isinstance(tensors, Tensor):
            tensors = state["layout"].tensors(tensors)
        self.__init__(state["layout"], tensors, state["real"], objects=state["objects"])
        self._extra = state["extra"]
        note_indices(self)

    def pin_memory(self) -> StaticBatch:
        """Returns the batch in pinned memory, as torch's ``DataLoader(pin_memory=True)`` asks."""
        return self._changed(lambda value: value.pin_memory())

    def _moved(self, device: torch.device, copy: bool, non_blocking: bool = False) -> StaticBatch:
        return self._changed(lambda value: value.to(device, non_blocking=non_blocking, copy=copy))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> StaticBatch:
        """Returns the batch in other memory: a single copy where its tensors share a buffer."""
        self._check_lease()
        whole = whole_of(self)
        if whole is not None:
            tensors = self.layout.tensors(change(whole))
        else:
            tensors = {name: change(value) for name, value in self._tensors.items()}
        moved = StaticBatch(self.layout, tensors, self.real, objects=self._objects)
        note_indices(moved)
        moved._extra = {
            name: change(value) if isinstance(value, Tensor) else value
            for name, value in self._extra.items()
        }
        return moved

    def unpad(self, value: Any, name: str = "") -> Any:
        """Cuts a padded tensor into one piece per real graph, without padding.

        Args:
            value: ``[G, ...]``, ``[N, ...]``, ``[E, ...]``, or the rows of an axis; or a tuple,
                list or dict of these, as a model returns them.
            name: what an error calls the value.

        Returns:
            One tensor per real graph, in the batch's order: its row, its nodes' rows, or its edges'
            rows as the store sorted them (by destination). For a tuple, list or dict, the same for
            each of its values; None, numbers and scalar tensors among them stay as they are.

        Raises:
            ValueError: a tensor without rows of this batch; the message names its key.
        """
        return unpadded(self, value, name)

    def first_places(self, level: Level) -> IntArray | None:
        """Returns which row each edge of the real graphs was before they were sorted; None if none
        was moved."""
        return moved_edges(self.layout.schema, self._objects).get(level)

    def to_data_list(self) -> list[Any]:
        """Returns the real graphs as ``Data`` or ``HeteroData``, edges sorted by destination."""
        return first_graphs(self)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self._tensors[name]) for name in self._tensors if name != COUNTS)

    def __repr__(self) -> str:
        real = "" if self.real is None else f", real: {self.real}"
        shapes = ", ".join(f"{name}={list(value.shape)}" for name, value in self)
        return f"StaticBatch(bucket={self.bucket}{real}, {shapes})"


_OWN = (*BatchArrays.__slots__, *StaticBatch.__slots__)


def first_graphs(batch: StaticBatch, most: int | None = None) -> list[Any]:
    """Does the work of :meth:`StaticBatch.to_data_list` for the first ``most`` graphs alone."""
    graphs = to_data_list(batch, most)
    for name, values in batch._objects.items():
        for data, value in zip(graphs, values, strict=False):
            setattr(data, name, value)
    return graphs


def filled(layout: SlotLayout, store: GraphColumns, ids: Iterable[int]) -> StaticBatch:
    """Does the work of :meth:`StaticBatch.of` with an existing layout, for stores with its fields.

    Raises:
        GraphTooLarge: together the graphs exceed the capacity.
    """
    graphs = several_graphs(ids, len(store))
    buffer = torch.empty(layout.nbytes, dtype=torch.uint8)
    tensors = layout.tensors(buffer)
    real = fill(store, graphs, layout, {name: each.numpy() for name, each in tensors.items()})
    note(buffer, layout.lengths)
    return StaticBatch(layout, tensors, real, objects=store.objects_of(graphs))
