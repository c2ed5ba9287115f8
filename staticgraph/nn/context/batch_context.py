"""What a converted layer knows about the batch that runs through it.

A layer such as BatchNorm is called with a tensor alone, yet must know which of its rows are real,
and a pool must know the number of graphs without reading it from the data. One object, shared by
the converted layers of one model, holds the model's settings and gives access to the batch that is
bound in this thread (:mod:`staticgraph.nn.context.bound_batch`) and to a register of the row counts
that occur in it: ``N`` rows are nodes, ``E`` edges, ``G`` graphs, and layers that make other rows
(added self-loops, nodes selected by a pool) register theirs. Where no batch is bound (the model is
used outside the runner), every layer behaves as it did before.

Invariant: the register is a function of shapes alone, so it is the same in every step of a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.errors import NotStatic
from staticgraph.internals.fakes import FakeTensor
from staticgraph.nn.context.bound_batch import (
    RowKind,
    SizeRegister,
    bind,
    bound_here,
    leaves,
    present,
    traced_here,
    unbind,
)
from staticgraph.nn.context.dense_layout import DenseLayout, placed, places_of
from staticgraph.nn.context.marked_tensor import GraphsOfRows, note_size
from staticgraph.nn.context.row_queries import APART, FLAT, LAST, Asked
from staticgraph.nn.context.search_room import SearchRoom
from staticgraph.text.how_many import how_many

_PASS_SIZE = (
    "pass size=, dim_size= or num_nodes= at this call (batch.num_graphs for graphs, x.size(0) for "
    "nodes)"
)


class BatchContext:
    """One model's settings, and access to the batch that is bound in the calling thread, if any."""

    __slots__ = ("apart", "attention", "counted", "kernels", "search_room")

    def __init__(self) -> None:
        self.attention: str = "auto"  # the requested path, of staticgraph.sizes.attention.PATHS
        # Leading sizes of the model's own tensors, each with the layer that asked about it.
        self.apart: dict[int, str] = {}
        self.kernels: bool = False
        # Fields that count the rows of each graph, each with the level of these rows.
        self.counted: dict[str, str] = {}
        # Rows for the edges that are found in the forward; None for all that may be found.
        self.search_room: SearchRoom | None = None

    def enter(self, batch: StaticBatch, leaves: bool = False) -> None:
        """Binds ``batch`` in this thread until :meth:`leave`, which restores the previous batch.

        With ``leaves``, the forward is being traced to be rewritten.
        """
        bind(self, batch, leaves)

    def leave(self) -> None:
        """Ends the last :meth:`enter` of this context in this thread; does nothing without one."""
        unbind(self)

    @property
    def batch(self) -> StaticBatch | None:
        """The batch that is bound in this thread, by any model; None outside of a step."""
        binding = present()
        return None if binding is None else binding.batch

    @property
    def _rows(self) -> SizeRegister:
        return bound_here().rows

    @property
    def _made(self) -> dict[Hashable, Any]:
        return bound_here().made

    @property
    def _blocks(self) -> dict[tuple[int, int], DenseLayout]:
        return bound_here().blocks

    @property
    def _asked(self) -> Asked | None:
        return bound_here().asked

    @property
    def present(self) -> StaticBatch:
        """The batch that is bound in this thread; there must be one."""
        return bound_here().batch

    @property
    def real(self) -> RealCounts | None:
        """The real counts as host numbers; None inside a compiled step."""
        return bound_here().batch.real

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the result of ``make``, computed once per forward and kept for later layers.

        Args:
            key: identifies the result.
            make: computes something from the batch alone, without a derivative.
        """
        results = self._made
        if key not in results:
            results[key] = make()
        return results[key]

    @property
    def overflows(self) -> list[Tensor]:
        """0-dim bools of the running forward: whether a layer had no room for all that it found.

        A layer appends its flag, and the step's outputs are NaN if any is set.
        """
        return self._made.setdefault("overflows", [])

    # ------------------------------------------------------------------ rows

    @property
    def known_sizes(self) -> list[int]:
        """The row counts that have a meaning."""
        return [size for size, _ in self._rows.entries]

    def register(self, size: int, rows: RowKind) -> None:
        """Declares what tensors of leading size ``size`` are in the rest of this forward."""
        known = self._rows.get(size)
        if known is not None and known.counted is not None:
            raise AssertionError(f"{size} rows are {known.what} already, not {rows.what}")
        self._rows.set(size, rows)

    def free_size(self, at_least: int, asker: Any) -> int:
        """Returns the smallest row count from ``at_least`` on that has no meaning yet.

        Where a backward runs a layer again (activation checkpointing), it is the count that the
        layer got in the forward.

        Args:
            at_least: the fewest rows.
            asker: the layer or function that makes such rows, and registers them before its next
                call.

        Raises:
            NotStatic: in a backward, if the layer was called more than once with as many rows.
        """
        binding = bound_here()
        sizes = binding.made.setdefault(("free size", asker, at_least), [])
        if binding.again and sizes:
            if len(sizes) > 1:
                raise NotStatic(
                    f"{type(asker).__name__.removeprefix('Static')} ran "
                    f"{how_many(len(sizes), 'time')} over as many rows in one forward, and "
                    "backward runs it again (activation checkpointing), where the calls cannot "
                    "be distinguished: give each call its own layer, or leave them out of the "
                    "checkpointed block"
                )
            return sizes[0]
        size = at_least
        while binding.rows.get(size) is not None:
            size += 1
        sizes.append(size)
        return size

    def may_become(self, size: int, what: str) -> bool:
        """Whether tensors of this leading size can be registered as ``what``: the size has no
        meaning yet, or this one. A recorded run takes no note of the query."""
        known = self._rows.get(size)
        return known is None or known.what == what

    def lay_out(self, groups: int, width: int, places: Callable[[], Tensor] | None = None) -> None:
        """Declares that tensors of leading size ``groups * width`` may be flattened blocks, as
        passed to a norm over ``x.view(groups * width, -1)``.

        Args:
            groups: the batch's graphs, or other groups.
            width: places in each.
            places: returns ``[groups, width]`` bool, the places that plain PyG's block would have;
                if None, all places of real groups. Called only if a norm asks.
        """
        rows = self._known_rows(groups)
        if rows is None:
            return

        def make() -> RowKind:
            """The mask of the block's places, flat."""
            mask = rows.mask[:, None].expand(groups, width)
            mask = mask if places is None else mask & places()
            return RowKind("places of a dense block", mask.reshape(-1), groups)

        self._made.setdefault("places", SizeRegister()).set(groups * width, make)

    def places_in(self, groups: int, width: int) -> Tensor | None:
        """``[groups, width]`` bool, the places that plain PyG's dense block has; None if no block
        of this size was laid out."""
        make = self._places_of(groups * width)
        return None if make is None else make().mask.view(groups, width)

    def _known_rows(self, size: int) -> RowKind | None:
        """The meaning of a size: registered rows, or a dense block laid out flat."""
        binding = bound_here()
        rows = binding.rows.get(size)
        if rows is None and (make := self._places_of(size)) is not None:
            rows = make()
            binding.rows.set(size, rows)
        return rows

    def _places_of(self, size: int) -> Callable[[], RowKind] | None:
        """What makes the meaning of a dense block laid out flat; None if there is none."""
        places = self._made.get("places")
        return None if places is None else places.get(size)

    def _check_apart_from_places(self, size: int) -> None:
        """Refuses a size that is both rows of the batch and a dense block of as many places.

        Raises:
            NotStatic: the size is both.
        """
        binding = bound_here()
        if (places := binding.made.get("places")) is None:
            return
        rows = binding.rows.get(size)
        if rows is not None and rows.counted and places.get(size) is not None:
            raise NotStatic(
                f"{size} rows are {rows.what} in this bucket, and a dense block laid out flat has "
                "as many places, so it is unknown which of them a norm runs over: plan with "
                "another number of rows (raise the capacity by 1)"
            )

    def find_rows(self, size: int) -> RowKind | None:
        """Returns what tensors of this leading size are, or None if it has no meaning.

        Raises:
            NotStatic: rows of the bucket have the same count as a tensor whose size is the same in
                every bucket.
        """
        rows, noted = self._known_rows(size), self._asked
        if noted is not None:
            if rows is None:
                noted.size(size)
        elif rows is not None and any(size == known for known in self.apart):
            layer = self.apart[int(size)]
            raise NotStatic(
                f"{layer}: {size} rows are {rows.what} in this bucket, and a tensor that the layer "
                "is called with has as many in every bucket, so it is unknown which they are: plan "
                "with another number of rows (raise the capacity by 1)"
            )
        return rows

    def rows_of(self, value: Tensor) -> RowKind:
        """Returns what the rows of a tensor are, judged by its leading size.

        Raises:
            NotStatic: the leading size does not occur in this batch, or is also a size of the
                model's own.
        """
        rows = self.find_rows(value.shape[0]) if value.dim() else None
        if rows is None:
            known = ", ".join(f"{size} ({rows.what})" for size, rows in self._rows.entries)
            raise NotStatic(
                f"a tensor of shape {list(value.shape)} has no rows of this batch, so which of "
                f"them are padding is unknown: expected a leading size of {known}. Bring the rows "
                "to the front (x.movedim(1, 0)), and choose among them after the layer "
                "(torch.where(mask, layer(x), x), not x[mask])"
            )
        return rows

    def rows_under(self, norm: torch.nn.Module, value: Tensor) -> RowKind | None:
        """Returns what the rows are over which a norm computes its statistics; None if the tensor
        is the model's own, such as a table of parameters.

        Raises:
            NotStatic: as :meth:`rows_of`.
        """
        noted = self._asked
        self._check_apart_from_places(value.shape[0])
        if noted is None:
            return None if getattr(norm, APART, False) else self.rows_of(value)
        rows = self._known_rows(value.shape[0])
        if noted.norm(norm, value, rows is not None, rows and rows.counted):
            return None
        return self.rows_of(value)

    def rows_each(self, norm: torch.nn.Module, value: Tensor) -> int:
        """Returns the ``k`` of a norm's input ``[R * k, C]``, laid flat from ``[R, k, C]`` over
        rows of the batch; 1 for any other input.

        In one bucket alone, ``R * k`` could be a size of the model's own. So the run over other
        sizes must have met rows of the same level, as many times; where there was none, it must be
        a multiple of nodes or of edges alone.
        """
        size = value.shape[0]
        if value.dim() != 2 or self._known_rows(size) is not None or getattr(norm, APART, False):
            return 1
        levels = [
            (rows.counted, size // count)
            for count, rows in self._rows.entries
            if rows.counted and count and size % count == 0
        ]
        noted = self._asked
        if noted is None:
            known = getattr(norm, FLAT, None)
            if known is None:
                levels = [level for level in levels if level[0] != "graph"]
                levels = levels if len(levels) == 1 else []
            else:
                levels = [level for level in levels if level in known]
        elif levels and not noted.norm(norm, value, False, None):
            noted.flat[norm] = (*noted.flat.get(norm, ()), *levels)
        return levels[0][1] if levels else 1

    def rows_last(self, norm: torch.nn.Module, value: Tensor) -> bool:
        """Whether a norm's input ``[k, C, R]`` has rows of the batch in its last dimension.

        In one bucket alone ``k`` could be a number of rows, so the run over other sizes decides.
        """
        if (binding := present()) is None or (noted := binding.asked) is None:
            return LAST in (getattr(norm, FLAT, None) or ())
        rows = [self._known_rows(size) for size in value.shape]
        found = len(rows) == 3 and rows[0] is None and rows[2] is not None
        if found:
            noted.flat[norm] = (LAST,)
        return found

    def mask_of(self, value: Tensor) -> Tensor:
        """``[R]`` bool: which rows of a tensor are real; see :meth:`rows_of`."""
        return self.rows_of(value).mask

    def column_mask(self, value: Tensor) -> Tensor:
        """:meth:`mask_of`, reshaped to ``[R, 1, ...]`` to broadcast over the tensor."""
        return self.mask_of(value).view(-1, *(1,) * (value.dim() - 1))

    def real_rows(self, rows: RowKind) -> int | None:
        """Returns how many leading rows are real, as a host number; None if it is not known."""
        real = self.real
        return None if real is None or rows.counted is None else real.of(rows.counted)

    def free_sizes(self, value: Tensor) -> bool:
        """Whether shapes may follow from a tensor's values: not on CUDA, where reading a number
        would wait, nor for a probe, which must hold for any batch."""
        free = self.real is not None and value.device.type == "cpu"
        return free and not isinstance(value, FakeTensor)

    # ------------------------------------------------------------------ groups

    def size_for(self, index: Tensor) -> int:
        """Returns how many groups an index without a given size names.

        An index field of the data names what it counts, and rows of ``batch`` name graphs. Any
        other vector over nodes names graphs, and one over edges names nodes.

        Raises:
            NotStatic: it is none of these, so that only its values could tell; or its values, where
                there are any (a trace has none), name something else.
        """
        capacity, tensors = self.present.capacity, self.present.tensors()
        for field in self.present.layout.schema.fields:
            if len(field.counts) == 1 and index is tensors[field.name] and index.dim() == 1:
                return capacity.rows(field.counts[0])
        if isinstance(index, GraphsOfRows):
            note_size("graph")
            return capacity.graphs
        rows = self.find_rows(index.size(0)) if index.dim() == 1 else None
        if rows is None or rows.groups is None:
            raise NotStatic(
                f"the number of groups of an index of shape {list(index.shape)} can only be read "
                f"from its values, which a recorded step cannot do: {_PASS_SIZE}"
            )
        if rows.counted == "edge" and self._names_graphs(index):
            raise NotStatic(
                "an index over edges without a size is taken to name nodes, and this one names "
                "graphs: index batch itself (batch[edge_index[0]]), pass size= or dim_size= at "
                "this call (batch.num_graphs), or add up by destination first and then by batch"
            )
        if rows.counted == "node" and not self._may_name_graphs(index):
            raise NotStatic(
                "an index over nodes without a size is taken to name graphs, and this one names "
                f"{how_many(int(index.max()) + 1, 'group')}: {_PASS_SIZE}; or make it a "
                "field that counts them (__inc__), together with a field of their graphs"
            )
        return rows.groups

    def _may_name_graphs(self, index: Tensor) -> bool:
        """Whether an index over nodes has the largest value of ``batch``, if it has values."""
        batch = self.present.tensors().get("batch")
        if traced_here() or leaves() or type(index) is not Tensor or type(batch) is not Tensor:
            return True
        if index.device.type != "cpu" or index.data_ptr() == batch.data_ptr():
            return True
        return int(index.max()) == int(batch.max())

    def _names_graphs(self, index: Tensor) -> bool:
        """Whether an index over edges is ``batch[edge_index[0]]``, if its values are available."""
        if traced_here() or leaves() or type(index) is not Tensor:
            return False
        tensors = self.present.tensors()
        ends, batch = tensors.get("edge_index"), tensors.get("batch")
        if type(ends) is not Tensor or type(batch) is not Tensor:
            return False
        if index.data_ptr() in (end.data_ptr() for end in ends):
            return False
        if any(torch.equal(index, end) for end in ends):
            return False
        return any(torch.equal(index, batch[end]) for end in ends)

    def num_nodes_for(self, edge_index: Any) -> int:
        """Returns how many nodes an ``edge_index`` ``[2, e]`` connects.

        Raises:
            NotStatic: its number of edges belongs to nothing in this batch.
        """
        rows = self.find_rows(edge_index.size(1))
        ends = None if rows is None else rows.groups if rows.ends is None else rows.ends
        if not ends:
            raise NotStatic(
                f"the number of nodes of an edge_index of shape {list(edge_index.shape)} can only "
                "be read from its values, which a recorded step cannot do: pass num_nodes= "
                "(x.size(0)) where the call takes it; where it does not (remove_self_loops, a "
                "layer with add_self_loops=True), make these edges in a transform of the data set "
                "(ToUndirected for both directions), or give the layer add_self_loops=False"
            )
        return ends

    # ------------------------------------------------------------------ dense blocks

    def dense(self) -> DenseLayout:
        """The place of each node in a ``[graphs, M]`` block; made once per forward."""
        return self.once("dense", lambda: DenseLayout.of(self.present))

    def starts(self) -> Tensor:
        """``[G + 1]`` int32: the first node of each real graph, made once per forward.

        Padding graphs have no nodes, so the last entry is the number of real nodes.
        """
        return self.once(
            "starts", lambda: torch.minimum(self.present.ptr, self.present.num_real_nodes).int()
        )

    def block(self, index: Tensor, groups: int, width: int) -> DenseLayout:
        """Returns the place of each row that ``index`` assigns to a group, in a block of ``groups``
        rows and ``width`` places; kept for :meth:`find_block` until the forward ends.

        Args:
            index: ``[R]`` int64, ascending.
            groups: rows of the block.
            width: places in each.
        """
        rows = self.rows_of(index)
        known = self._blocks.get((groups, width))
        if known is not None and len(known.place_of_node) == len(index):
            return known
        place = placed if leaves() else places_of
        whole = rows.widest is not None and width >= rows.widest
        block = DenseLayout(groups, width, *place(index, rows.mask, groups, width, whole))
        self._blocks[groups, width] = block
        return block

    def find_block(self, shape: torch.Size) -> DenseLayout | None:
        """Returns the block of this shape that :meth:`block` made last, or None."""
        return self._blocks.get((shape[0], shape[1])) if len(shape) == 2 else None

    def largest(self) -> int | Tensor:
        """Nodes of the largest real graph: a host number if known, else a 0-dim int64 tensor."""
        batch = self.present
        if batch.real is not None:
            return max(1, batch.real.largest)
        sizes = torch.where(batch.graph_mask, batch.ptr.diff(), 0)
        return sizes.max().clamp(min=1)


def context_held(layer: Any) -> BatchContext:
    """Returns the context that a static layer was given when its model was converted."""
    return layer._staticgraph
