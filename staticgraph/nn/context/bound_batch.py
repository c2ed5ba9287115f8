"""The batch that is bound in this thread, what its rows are, and the model context it belongs to.

A function of PyG is called with tensors alone, in whatever thread the model runs, and must find the
batch of exactly that forward: another thread may run another batch through the same layers, and a
teacher's forward may run inside a student's. Bindings are therefore kept on a stack per thread:
entering a batch pushes a :class:`Binding`, leaving pops it, and layers and functions see the
innermost one.

It is a ``threading.local`` and not a ``ContextVar``, because torch.compile traces (and guards, in
the calling thread) the former and breaks at the latter.

Backward is the exception: on CUDA it runs in autograd's own threads, and activation checkpointing
runs parts of the forward again there. :func:`remember` ties a binding to the results of its
forward; while a backward from them runs, its operations see that binding in any thread.

What the rows of a tensor are is judged by its leading size. The physical sizes of a bucket all
differ, so a size says whether rows are nodes, edges, graphs, the rows of an axis, or the nodes or
edges of one type. Layers that put all types into one tensor (HGTConv, ``to_homogeneous``) make rows
of their sum; the planner keeps that sum distinct as well. Whether a size is the batch's at all, and
not that of a tensor of the model's own, is decided in :mod:`staticgraph.nn.context.row_queries`.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.dispatch import current_graph_task, tracing_context
from staticgraph.nn.context.row_queries import ASKED, Asked
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
    if "node" not in batch.layout.rows:  # nodes have types
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
    groups, ends = batch.num_nodes, None
    for source, target in [f.counts for f in batch.layout.schema.fields if f.name == EDGE_INDEX]:
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


class Binding:
    """A bound batch, and what has been made for it since.

    Attributes:
        context: the context of the model that entered it
            (:class:`staticgraph.nn.context.batch_context.BatchContext`), whose settings PyG's
            functions follow.
        batch: the batch.
        rows: the register of row counts.
        made: results that are made once per forward.
        blocks: dense blocks by their shape.
        before: the binding of this thread when this one was entered, or None.
        task: the graph task of the backward in which it was entered; -1 for none.
        leaves: whether the forward is traced to be rewritten; see
            :mod:`staticgraph.nn.context.leaf_calls`.
        asked: the record of what layers ask; None in an actual step, and while one is compiled.
        again: whether the running code is part of a finished forward, repeated in its backward.
    """

    __slots__ = (
        "__weakref__",
        "again",
        "asked",
        "batch",
        "before",
        "blocks",
        "context",
        "leaves",
        "made",
        "rows",
        "task",
    )

    def __init__(
        self,
        context: Any,
        batch: StaticBatch,
        rows: SizeRegister,
        before: Binding | None = None,
        task: int = -1,
        leaves: bool = False,
    ) -> None:
        self.context: Any = context
        self.batch: StaticBatch = batch
        self.rows: SizeRegister = rows
        self.made: dict[Any, Any] = {}
        self.blocks: dict[Any, Any] = {}
        self.before: Binding | None = before
        self.task: int = task
        self.leaves: bool = leaves
        self.again: bool = False
        self.asked: Asked | None = None


class _Here(threading.local):
    def __init__(self) -> None:
        self.binding: Binding | None = None


_HERE = _Here()
# By autograd's id of a running backward; an entry lives as long as its graph.
_OF_TASK: weakref.WeakValueDictionary[int, Binding] = weakref.WeakValueDictionary()


def traced_here() -> bool:
    """Whether the code of this thread is being traced or exported.

    ``torch.compiler.is_compiling()`` is true in every thread while one of them compiles.
    """
    # A trace treats the first as True and stops there.
    return torch.compiler.is_dynamo_compiling() or tracing_context() is not None


def present() -> Binding | None:
    """The innermost binding of this thread; None outside of any forward."""
    binding = _HERE.binding
    if torch.compiler.is_dynamo_compiling() or tracing_context() is not None:
        return binding
    task = current_graph_task()
    if task == -1 or (binding is not None and binding.task == task):
        return binding
    return _OF_TASK.get(task, binding)


def bound_here() -> Binding:
    """The innermost binding of this thread, of which there must be one."""
    binding = present()
    assert binding is not None, "no batch is bound"
    return binding


def leaves() -> bool:
    """Whether a step is being traced to be rewritten, so that leaves should be called."""
    binding = present()
    return binding is not None and binding.leaves


def bind(context: Any, batch: StaticBatch, leaves: bool = False) -> None:
    """Binds a batch in this thread."""
    traced = traced_here()
    task = -1 if traced else current_graph_task()
    binding = Binding(context, batch, rows_of_batch(batch), _HERE.binding, task, leaves)
    if not traced:
        binding.asked = ASKED.get()
    _HERE.binding = binding


def unbind(context: Any) -> None:
    """Removes the innermost binding that ``context`` entered, and all bindings inside it."""
    binding = _HERE.binding
    while binding is not None and binding.context is not context:
        binding = binding.before
    if binding is not None:
        _HERE.binding = binding.before


class Restored:
    """Context manager that restores the previous binding at its end, whatever happened inside.

    Args:
        nothing: start with nothing bound inside, so that a compiled function whose guards require
            that can be called from within another model's forward.
    """

    __slots__ = ("_before", "_nothing")

    def __init__(self, nothing: bool = False) -> None:
        self._nothing = nothing

    def __enter__(self) -> None:
        self._before = _HERE.binding
        if self._nothing:
            _HERE.binding = None

    def __exit__(self, *exc: object) -> None:
        _HERE.binding = self._before


def remember(results: list[Tensor]) -> None:
    """Makes the current binding visible in any backward that starts from one of these tensors."""
    binding = _HERE.binding
    results = [result for result in results if result.requires_grad and not result.is_leaf]
    if binding is None or not results:
        return
    # Without the lease: a kept result must not keep a slot of the loader in use.
    arrays = dict(binding.batch.tensors())
    batch = StaticBatch(binding.batch.layout, arrays, binding.batch.real)
    bound = Binding(binding.context, batch, binding.rows)
    bound.made, bound.blocks = binding.made, binding.blocks
    bound.again = True

    def enter(_: Tensor) -> None:
        """Ties the binding to the graph task of the backward that begins."""
        _OF_TASK[current_graph_task()] = bound

    for result in results:
        result.register_hook(enter)
