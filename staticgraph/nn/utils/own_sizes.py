"""Sizes that a model reads off the batch's own indices, known without reading.

The problem: ``batch[-1].item() + 1``, ``int(edge_index.max()) + 1``, a scatter of torch_scatter
without ``dim_size``: older models ask the device how many graphs or nodes there are, and a
recording has no host in it. The idea: while such a model runs, ``batch`` and ``edge_index`` are
marked. The largest value of a marked index is the last graph or the last node, whatever stands in
it; what is asked of such a number on the host is a number of the bucket. Views of a marked index
are marked, so that what broadcasts it first (torch_scatter) is served; anything computed from it is
a plain tensor.

Where a graph begins, ``(batch[1:] - batch[:-1]).nonzero()``, is read off ``ptr``: a row for each
graph but the first.

Invariant: the values of marked tensors are those that they had. A model is marked only where it was
seen to ask (:func:`asks`), so no other model is traced otherwise than before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.static_batch import StaticBatch
from staticgraph.internals.dispatch import DisableTorchFunctionSubclass
from staticgraph.nn.context.marked import marked
from staticgraph.nn.context.present import present

_ASKED: ContextVar[list[str] | None] = ContextVar("asked_sizes", default=None)

_VIEWS = {
    Tensor.contiguous,
    Tensor.detach,
    Tensor.expand,
    Tensor.expand_as,
    Tensor.flatten,
    Tensor.long,
    Tensor.reshape,
    Tensor.to,
    Tensor.unsqueeze,
    Tensor.view,
    torch.flatten,
    torch.unsqueeze,
}
_LARGEST = {Tensor.max, torch.max, Tensor.amax, torch.amax}
_HOST = {Tensor.item, Tensor.__int__, Tensor.__index__, Tensor.tolist}
_SUMS = {Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add}
_NONZERO = {Tensor.nonzero, torch.nonzero}
_CHANGES = {Tensor.sub, Tensor.__sub__, torch.sub, Tensor.ne, Tensor.__ne__, torch.ne}


def _noted(what: str) -> None:
    if not torch.compiler.is_compiling() and (asked := _ASKED.get()) is not None:
        asked.append(what)


def _plain(func: Any, args: Any, kwargs: Any) -> Any:
    with DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


def _present() -> StaticBatch | None:
    binding = present()
    return None if binding is None else binding.batch


class _NumGraphs(Tensor):
    """The number of graphs."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        batch = _present()
        if func in _HOST and batch is not None:
            _noted("graphs")
            return batch.num_graphs
        return _plain(func, args, kwargs)


class _LastGraph(Tensor):
    """The largest value of ``batch``."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        batch = _present()
        if func in _HOST and batch is not None:
            _noted("graphs")
            return batch.num_graphs - 1
        out = _plain(func, args, kwargs)
        return marked(out, _NumGraphs) if func in _SUMS and _one_more(args) else out


class _NumNodes(Tensor):
    """The number of nodes."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        batch = _present()
        if func in _HOST and batch is not None:
            _noted("nodes")
            return batch.num_nodes
        return _plain(func, args, kwargs)


class _LastNode(Tensor):
    """The largest value of ``edge_index``, or of one of its rows."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        batch = _present()
        if func in _HOST and batch is not None:
            _noted("nodes")
            return batch.num_nodes - 1
        out = _plain(func, args, kwargs)
        return marked(out, _NumNodes) if func in _SUMS and _one_more(args) else out


def _one_more(args: Any) -> bool:
    return len(args) == 2 and type(args[1]) is int and args[1] == 1


class _Changes(Tensor):
    """Where ``batch`` goes from one graph to the next."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        batch = _present()
        if func in _NONZERO and batch is not None:
            _noted("first nodes")
            places = batch.ptr[1:-1] - 1
            return (places,) if (kwargs or {}).get("as_tuple") else places[:, None]
        return _plain(func, args, kwargs)


class _Part(Tensor):
    """``batch[1:]`` or ``batch[:-1]``."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _plain(func, args, kwargs)
        both = len(args) == 2 and isinstance(args[0], cls) and isinstance(args[1], cls)
        return marked(out, _Changes) if func in _CHANGES and both else out


class _OfNodes(Tensor):
    """The graph of each node."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _plain(func, args, kwargs)
        if func in _LARGEST and len(args) == 1 and not kwargs:
            return marked(out, _LastGraph)
        if func is Tensor.__getitem__:
            if type(args[1]) is int and args[1] == -1 and out.dim() == 0:
                return marked(out, _LastGraph)
            if type(args[1]) is slice and _is_shift(args[1]):
                return marked(out, _Part)
            return out
        return marked(out, _OfNodes) if _is_view(func, out) else out


class _OfEdges(Tensor):
    """The ends of edges, ``[2, E]`` or one of its rows."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _plain(func, args, kwargs)
        if func in _LARGEST and len(args) == 1 and not kwargs:
            return marked(out, _LastNode)
        if func is Tensor.__getitem__:
            row = type(args[1]) is int and args[0].dim() == 2 and args[0].size(0) == 2
            return marked(out, _OfEdges) if row else out
        if func in (Tensor.unbind, torch.unbind, Tensor.__iter__) and args[0].dim() == 2:
            return tuple(marked(row, _OfEdges) for row in out)
        return marked(out, _OfEdges) if _is_view(func, out) else out


def _is_shift(part: slice) -> bool:
    return part.step is None and (part.start, part.stop) in ((1, None), (None, -1), (0, -1))


def _is_view(func: Any, out: Any) -> bool:
    return func in _VIEWS and isinstance(out, Tensor) and out.dtype == torch.int64


def with_own_sizes(batch: StaticBatch) -> StaticBatch:
    """The batch with its own indices marked; itself where nodes have types, or two kinds."""
    schema = batch.layout.schema
    if schema.hetero or schema.two_sided:
        return batch
    return batch.replace(
        batch=marked(batch.batch, _OfNodes), edge_index=marked(batch.edge_index, _OfEdges)
    )


@contextmanager
def asks() -> Iterator[list[str]]:
    """What is asked of marked indices inside."""
    asked: list[str] = []
    token = _ASKED.set(asked)
    try:
        yield asked
    finally:
        _ASKED.reset(token)
