"""The batch that is bound in this thread, and the model context it belongs to.

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
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.dispatch import current_graph_task, traced_here


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
        again: whether the running code is part of a finished forward, repeated in its backward.
    """

    __slots__ = (
        "__weakref__",
        "again",
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
        rows: Any,
        before: Binding | None,
        task: int,
        leaves: bool = False,
    ) -> None:
        self.context: Any = context
        self.batch: StaticBatch = batch
        self.rows: Any = rows
        self.made: dict[Any, Any] = {}
        self.blocks: dict[Any, Any] = {}
        self.before: Binding | None = before
        self.task: int = task
        self.leaves: bool = leaves
        self.again: bool = False


class _Here(threading.local):
    def __init__(self) -> None:
        self.binding: Binding | None = None


_HERE = _Here()
# By autograd's id of a running backward; an entry lives as long as its graph.
_OF_TASK: weakref.WeakValueDictionary[int, Binding] = weakref.WeakValueDictionary()


def present() -> Binding | None:
    """The innermost binding of this thread; None outside of any forward."""
    binding = _HERE.binding
    if torch.compiler.is_dynamo_compiling() or traced_here():  # a trace stops at the first
        return binding
    task = current_graph_task()
    if task == -1 or (binding is not None and binding.task == task):
        return binding
    return _OF_TASK.get(task, binding)


def bind(context: Any, batch: StaticBatch, rows: Any, leaves: bool = False) -> None:
    """Binds a batch in this thread."""
    task = -1 if traced_here() else current_graph_task()
    _HERE.binding = Binding(context, batch, rows, _HERE.binding, task, leaves)


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
    bound = Binding(binding.context, batch, binding.rows, None, -1)
    bound.made, bound.blocks = binding.made, binding.blocks
    bound.again = True

    def enter(_: Tensor) -> None:
        """Ties the binding to the graph task of the backward that begins."""
        _OF_TASK[current_graph_task()] = bound

    for result in results:
        result.register_hook(enter)
