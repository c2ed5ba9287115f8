"""Fixed memory for batches: one buffer, cut into the arrays of a bucket, lent and taken back.

Every array of a batch is a view of one contiguous buffer, so that a batch crosses to a device in
one copy and its addresses never change. A pool owns a fixed number of slots; a batch gives its slot
back when it is dropped. A consumer that keeps batches runs out of slots and gets an error, instead
of memory growing silently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from staticgraph.batches.slots.batch_memory import note
from staticgraph.errors import NotStatic, PlanMismatch, SlotsExhausted
from staticgraph.kernels.collate.arguments import COPY, LINE, ZERO
from staticgraph.schema import COUNTS, ORDERS, Field, Level, Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import pointer_dtype
from staticgraph.store.columns import Array
from staticgraph.text.how_many import how_many

# The bucket of a batch that is not padded to a bucket of the plan, and runs in eager.
UNPLANNED = -1
# A GPU's vector loads need 16 bytes, a cache line has 64, a CUDA allocation 256.
ALIGNMENT = 256
# Arrays that a batch with typed nodes and edges has once per type instead.
UNTYPED = frozenset({"edge_index", "batch", "ptr", "node_mask", "edge_mask"})


class Entry(NamedTuple):
    """One array of a slot: ``nbytes`` at ``offset``."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """The number of bytes of the array, without alignment."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class SlotLayout:
    """Which arrays a batch of one bucket has, and where they are in its slot.

    Every batch has ``edge_index [2, E]``, ``batch [N]``, ``ptr [G + 1]``, ``graph_ids [G]``,
    ``_counts [3]`` (real nodes, edges, graphs; all int64), ``node_mask [N]``, ``edge_mask [E]``,
    ``graph_mask [G]`` (bool); then the fields of the schema in the dtypes a model sees.

    For an axis ``a`` with ``R`` rows there are ``a_mask [R]`` (bool), ``a_batch [R]`` and ``a_ptr
    [G + 1]`` (int64), and ``_counts`` has one number more. If nodes have types, these replace
    ``edge_index``, ``batch``, ``ptr``, ``node_mask`` and ``edge_mask``.

    With ``pointers`` there are also the arrays that sums over neighbours need to do without atomics
    (int32, or int64 in a bucket with more than 2^31 - 1 edges): the edges into node ``i`` are
    ``row_ptr[i]`` to ``row_ptr[i + 1]`` (``[N + 1]``), the edges out of node ``j`` are
    ``transpose[col_ptr[j]]`` to ``transpose[col_ptr[j + 1]]`` (``[E]``, ``[N + 1]``), padding edges
    included.

    Raises:
        PlanMismatch: the capacity lacks rows that the schema counts, or has more than an index
            field can number.
        ValueError: row pointers for graphs with several types of nodes, with edges between two
            kinds of rows, or with edges that are not sorted by destination.
    """

    bucket: int
    capacity: Capacity
    schema: Schema
    pointers: bool = False

    def __post_init__(self) -> None:
        planned = [name for name, _ in self.capacity.extra]
        names = [axis.name for axis in self.schema.axes]
        if planned != names:
            raise PlanMismatch(
                f"the data counts {', '.join(names) or 'nodes, edges and graphs alone'} but the "
                f"capacity {self.capacity} has rows for {', '.join(planned) or 'none of these'}: "
                "make the plan from a store, which counts rows of every kind: plan_buckets(store, "
                "...), plan_stream(sg.GraphStore.from_pyg(graphs, keep_order=True), ...); or name "
                "them with Capacity(..., extra={name: rows})"
            )
        if self.schema.counts_edges and not self.capacity.edge_reserve:
            raise PlanMismatch(
                f"an index field counts edges, and {self.capacity} keeps no edge for its padding "
                "to point at: make the plan with plan_buckets(store, ...), or give "
                "Capacity(..., edge_reserve=1)"
            )
        self._check_indices()
        if self.pointers and not self.schema.has_pointers:
            raise ValueError(
                "the fused kernels take graphs with one type of nodes, and edges sorted by "
                "destination (no keep_order=True): kernels=False"
            )
        for name in (
            "nbytes",
            "rows",
            "_cuts",
        ):  # not first in a trace, which cannot take their lock
            getattr(self, name)

    def _check_indices(self) -> None:
        """Refuses an index field whose dtype cannot hold this bucket's row numbers."""
        for field in self.schema:
            rows = max((self.capacity.rows(level) for level in field.counts if level), default=0)
            if rows and rows - 1 > np.iinfo(field.dtype).max:
                raise PlanMismatch(
                    f"{field.name!r} is {field.dtype}, and would number {how_many(rows, 'row')} in "
                    f"a batch of {self.capacity}, which it cannot: give it as int64 in every graph"
                )

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The arrays, in order."""
        nodes, edges, graphs = self.capacity.nodes, self.capacity.edges, self.capacity.graphs
        arrays: list[tuple[str, str, tuple[int, ...]]] = [
            ("edge_index", "int64", (2, edges)),
            ("batch", "int64", (nodes,)),
            ("ptr", "int64", (graphs + 1,)),
            ("graph_ids", "int64", (graphs,)),
            (COUNTS, "int64", (3 + len(self.schema.axes),)),
            ("node_mask", "bool", (nodes,)),
            ("edge_mask", "bool", (edges,)),
            ("graph_mask", "bool", (graphs,)),
        ]
        if self.schema.hetero:
            arrays = [item for item in arrays if item[0] not in UNTYPED]
        if self.schema.two_sided:
            arrays = arrays[1:]  # edge_index is a field here
        for axis in self.schema.axes:
            rows = self.capacity.rows(axis.name)
            arrays += [
                (f"{axis.name}_mask", "bool", (rows,)),
                (f"{axis.name}_batch", "int64", (rows,)),
                (f"{axis.name}_ptr", "int64", (graphs + 1,)),
            ]
        if self.pointers:
            pointer = pointer_dtype(edges)
            arrays += [
                ("row_ptr", pointer, (nodes + 1,)),
                ("col_ptr", pointer, (nodes + 1,)),
                ("transpose", pointer, (edges,)),
            ]
        for field in self.schema:
            rows = self.capacity.rows(field.level) * field.rows
            arrays.append((field.name, field.dtype, field.physical(rows)))
        entries, offset = [], 0
        for name, dtype, shape in arrays:
            entry = Entry(name, np.dtype(dtype), shape, offset)
            entries.append(entry)
            offset += -(-entry.nbytes // ALIGNMENT) * ALIGNMENT
        return tuple(entries)

    def in_order(self, layout: SlotLayout, arrays: Mapping[str, Tensor]) -> list[Tensor]:
        """Returns the arrays of a batch of another layout in the order of this one.

        Two data sets may have the same fields in another order.

        Raises:
            NotStatic: the layouts differ in their arrays, not in the order alone.
        """
        if layout is not self and layout.entries != self.entries:
            theirs, ours = ({entry[:3] for entry in each.entries} for each in (layout, self))
            if theirs != ours:
                names = ", ".join(sorted({name for name, _, _ in theirs ^ ours}))
                remedy = "make the loader over the data that the plan was made for"
                if layout.schema.keep_order is not self.schema.keep_order:
                    remedy = (
                        f"its edges are {ORDERS[layout.schema.keep_order]}, the step was prepared "
                        f"for edges {ORDERS[self.schema.keep_order]}: give the runner and "
                        "the loader one Padder in place of the plan, or make the plan for the "
                        "loader's store, or warmup(batch) with a batch of the loader"
                    )
                raise NotStatic(
                    "the batch and the step, as it was compiled or recorded, differ in "
                    f"{names}: {remedy}"
                )
            return [arrays[entry.name] for entry in self.entries]
        return list(arrays.values())

    @cached_property
    def counterpart(self) -> SlotLayout:
        """The layout with row pointers if this one has none, and without them if it has."""
        return replace(self, pointers=not self.pointers)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The names of the schema's axes."""
        return tuple(axis.name for axis in self.schema.axes)

    @cached_property
    def apart(self) -> bool:
        """Whether padding edges join neighbouring padding nodes instead of being self-loops."""
        return self.schema.has_vectors

    @cached_property
    def paddings(self) -> tuple[tuple[Field, int], ...]:
        """The fields that are no indices, each with what its padding rows hold:
        :data:`~staticgraph.kernels.collate.arguments.ZERO`, ``COPY`` or ``LINE``."""
        line = self.schema.positions_of("node") if self.schema.one_kind else None
        return tuple(
            (field, ZERO if field.has_nan else LINE if field.name == line else COPY)
            for field in self.schema
            if field.width and not field.is_index
        )

    @cached_property
    def rows(self) -> dict[Level, int]:
        """The levels that the rows of a tensor of a batch can have, with how many there are."""
        levels = ("graph",) if self.schema.hetero else ("graph", "node", "edge")
        return {level: self.capacity.rows(level) for level in (*levels, *self.axes)}

    @cached_property
    def lengths(self) -> frozenset[int]:
        """The numbers of rows that its arrays have, padding included."""
        rows = {self.capacity.nodes, self.capacity.edges, *self.rows.values()}
        fields = {self.capacity.rows(field.level) * field.rows for field in self.schema}
        return frozenset(rows | fields)

    @cached_property
    def nbytes(self) -> int:
        """The number of bytes of a slot with this layout."""
        last = self.entries[-1]
        return last.offset + -(-last.nbytes // ALIGNMENT) * ALIGNMENT

    def tensors(self, buffer: Tensor) -> dict[str, Tensor]:
        """Returns views of a uint8 buffer that has at least :attr:`nbytes`.

        Each has a version of its own: a model may write to one field after it used another.
        """
        return {
            name: buffer[first:last].view(dtype).view(shape).data
            for name, first, last, dtype, shape in self._cuts
        }

    @cached_property
    def _cuts(self) -> tuple[tuple[str, int, int, torch.dtype, tuple[int, ...]], ...]:
        """Of every array its name, where it begins and ends in a buffer, its dtype and shape."""
        return tuple(
            (e.name, e.offset, e.offset + e.nbytes, getattr(torch, e.dtype.name), e.shape)
            for e in self.entries
        )


class Views(NamedTuple):
    """A slot's memory as one bucket sees it: tensors, on the host the same as NumPy arrays, and
    ``[bytes]`` uint8 of all of them, for a single copy."""

    tensors: dict[str, Tensor]
    arrays: dict[str, Array]
    whole: Tensor


class Slot:
    """One buffer with its views, for every bucket of a plan.

    Attributes:
        buffer: ``[bytes]`` uint8, initially zeros.
        released: on a device, the event that the next fill must wait for: at first the end of the
            zero fill, which another stream could otherwise overtake, later the end of the last
            holder's work.
        generation: how many times the slot was given back.
        views: the buffer as each bucket sees it, by bucket, once it was read so.
    """

    __slots__ = ("_layouts", "_made_on", "buffer", "generation", "released", "views")

    def __init__(self, layouts: Sequence[SlotLayout], device: torch.device, pinned: bool) -> None:
        nbytes = max(layout.nbytes for layout in layouts)
        with torch.inference_mode(False):  # a loader made or first used there can still train
            self.buffer: Tensor = torch.zeros(
                nbytes, dtype=torch.uint8, device=device, pin_memory=pinned
            )
        note(self.buffer, frozenset().union(*(layout.lengths for layout in layouts)))
        self.released: torch.cuda.Event | None = None
        self.generation: int = 0
        self._made_on = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._layouts = layouts
        self.views: dict[int, Views] = {}
        self.mark_released(device)

    def mark_released(self, device: torch.device) -> None:
        """Makes the next fill wait for what the current stream has queued; on a device only.

        So does the next owner of the memory, once nobody has the slot any longer: the caching
        allocator by itself waits only for the stream that the memory was allocated on.
        """
        if device.type == "cuda":
            present = torch.cuda.current_stream(device)
            self.released = self.released or torch.cuda.Event()
            self.released.record(present)
            if present != self._made_on:
                self.buffer.record_stream(present)

    def of(self, bucket: int) -> Views:
        """Returns the arrays of a bucket; always the same objects."""
        if bucket not in self.views:
            layout = self._layouts[bucket]
            with torch.inference_mode(False):
                tensors = layout.tensors(self.buffer)
            on_host = self.buffer.device.type == "cpu"
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()} if on_host else {}
            self.views[bucket] = Views(tensors, arrays, self.buffer[: layout.nbytes])
        return self.views[bucket]


class SlotPool:
    """A fixed number of slots, lent oldest first.

    Attributes:
        looked: the numbers of those that have done, in this epoch, what each does once per epoch; a
            loader replaces the set when an epoch begins.
        loader: the settings of the loader that must be the same on all ranks, by their names in
            messages; replaced when an epoch begins. None if it is no loader's pool.

    Raises (from :meth:`lend`):
        SlotsExhausted: all are lent.
    """

    def __init__(
        self,
        layouts: Sequence[SlotLayout],
        count: int,
        device: str | torch.device = "cpu",
        pinned: bool = False,
    ) -> None:
        self.device: torch.device = torch.device(device)
        self.count = count
        self.looked: set[int] = set()
        self.loader: Mapping[str, Any] | None = None
        self._free = deque(Slot(layouts, self.device, pinned) for _ in range(count))

    @property
    def free(self) -> int:
        """The number of slots that nobody holds."""
        return len(self._free)

    def lend(self) -> Slot:
        """Returns a slot that nobody holds.

        A graph of autograd that still needs what is in it raises in its backward.

        Raises:
            SlotsExhausted: the consumer keeps them all.
        """
        try:
            slot = self._free.popleft()
        except IndexError:
            all_of_them = (
                f"all {self.count} slots are held" if self.count > 1 else "the slot is held"
            )
            raise SlotsExhausted(
                f"{all_of_them} by batches that are still alive: use a batch and drop it, "
                "keep a copy with batch.clone() (in place of list(loader): [batch.clone() for "
                "batch in loader]), or raise StaticLoader(slots=...)"
            ) from None
        increment_version([t for views in slot.views.values() for t in views.tensors.values()])
        return slot

    def take_back(self, slot: Slot) -> None:
        """Takes a slot back; on a device, its next fill waits for the work queued until now."""
        slot.mark_released(self.device)
        slot.generation += 1
        self._free.append(slot)


class Lease:
    """Held by a batch; gives the slot back when the batch is dropped, or before."""

    __slots__ = ("generation", "pool", "slot")

    def __init__(self, pool: SlotPool, slot: Slot) -> None:
        self.pool: SlotPool = pool
        self.slot: Slot = slot
        self.generation: int = slot.generation

    @property
    def stale(self) -> bool:
        """Whether the slot was given back since, so that its arrays are another batch's."""
        return self.generation != self.slot.generation

    def give_back(self) -> None:
        """Gives the slot back now; does nothing the second time."""
        if self.generation == self.slot.generation:
            self.pool.take_back(self.slot)

    def __del__(self) -> None:
        self.give_back()
