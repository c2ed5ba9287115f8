"""Tracks where the entries of a tensor come from through views, permutations and slices.

Heads of attention are split and joined in twenty spellings: ``view`` and ``transpose``,
``permute``, ``unflatten``, ``chunk``, the transpositions inside ``nn.MultiheadAttention``. All of
them only move entries. So a tensor is described by what each of its dimensions runs over:
stretches of the axes of its source, outermost first. A view splits and joins stretches, a
permutation changes their order, a slice of columns moves their start; two tensors hold the same
entries in the same order if their descriptions are equal, however they were spelled.

Invariant: a tensor that cannot be described gives None, never a guess.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.rewrites.captured_graph.canonical_ops import (
    SELECT,
    Call,
    is_call,
    is_method,
    shape,
    value,
)

COLUMN = "column"  # the axis that may be sliced


class Stretch(NamedTuple):
    """``size`` entries along one axis of the source, ``step`` apart."""

    axis: str
    size: int
    step: int = 1


Dim = tuple[Stretch, ...]


class Axes(NamedTuple):
    """What each dimension of a tensor runs over, and at which column of the source it starts."""

    dims: tuple[Dim, ...]
    start: int = 0

    @classmethod
    def from_sizes(cls, *named: tuple[str, int]) -> Axes:
        """The axes of a source: one name and size per dimension."""
        return cls(tuple(_joined([Stretch(*pair)]) for pair in named))

    def view(self, sizes: Sequence[int]) -> Axes | None:
        """The same entries in the same order in another shape; None if it cannot be described."""
        left = [stretch for dim in self.dims for stretch in dim]
        dims = []
        for size in sizes:
            taken = []
            while size > 1:
                if not left:
                    return None
                first = left.pop(0)
                if size % first.size == 0:
                    taken.append(first)
                    size //= first.size
                elif first.size % size == 0:
                    inner = first.size // size
                    taken.append(Stretch(first.axis, size, first.step * inner))
                    left.insert(0, first._replace(size=inner))
                    size = 1
                else:
                    return None
            dims.append(_joined(taken))
        return None if left else Axes(tuple(dims), self.start)

    def permute(self, order: Sequence[int]) -> Axes | None:
        """The dimensions in another order."""
        number = len(self.dims)
        places = [place % number for place in order]
        if sorted(places) != list(range(number)):
            return None
        return Axes(tuple(self.dims[place] for place in places), self.start)

    def swap(self, first: int, second: int) -> Axes | None:
        """Swaps two dimensions."""
        order = list(range(len(self.dims)))
        order[first], order[second] = order[second], order[first]
        return self.permute(order)

    def cut(self, dim: int, first: int, size: int) -> Axes | None:
        """``size`` entries of a dimension, from ``first`` on."""
        dim %= len(self.dims)
        stretches = self.dims[dim]
        whole = 1
        for stretch in stretches:
            whole *= stretch.size
        if (first, size) == (0, whole):
            return self
        if len(stretches) != 1 or stretches[0].axis != COLUMN or not 0 <= first <= whole - size:
            return None
        (columns,) = stretches
        dims = list(self.dims)
        dims[dim] = _joined([columns._replace(size=size)])
        return Axes(tuple(dims), self.start + first * columns.step)

    def select(self, dim: int, place: int) -> Axes | None:
        """One entry of a dimension, which is removed."""
        dim %= len(self.dims)
        size = 1
        for stretch in self.dims[dim]:
            size *= stretch.size
        entry = self.cut(dim, place % size, 1)
        return entry and Axes(entry.dims[:dim] + entry.dims[dim + 1 :], entry.start)

    def expand(self, sizes: Sequence[int]) -> Axes | None:
        """Repeats dimensions of size one, and new leading dimensions."""
        more = len(sizes) - len(self.dims)
        if more < 0:
            return None
        dims = [()] * more + list(self.dims)
        for place, size in enumerate(sizes):
            if not dims[place] and size > 1:
                dims[place] = (Stretch("", size, 0),)
        return Axes(tuple(dims), self.start)


def _joined(stretches: Sequence[Stretch]) -> Dim:
    """Merges adjacent stretches and drops those of a single entry."""
    merged: list[Stretch] = []
    for stretch in stretches:
        if stretch.size == 1:
            continue
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.axis == stretch.axis
            and last.step == stretch.step * stretch.size
        ):
            merged[-1] = Stretch(stretch.axis, last.size * stretch.size, stretch.step)
        else:
            merged.append(stretch)
    return tuple(merged)


_VIEWS = ("view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten")
_VIEW_CALLS = (
    torch.reshape,
    torch.unsqueeze,
    torch.squeeze,
    torch.flatten,
    torch.unflatten,
    Tensor.view,
)
_CUTS = ("chunk", "split", "tensor_split", "split_with_sizes", "unbind")
_CUT_CALLS = (torch.chunk, torch.split, torch.tensor_split, torch.unbind)
_SWAPS = ("transpose", "swapaxes", "swapdims")
_SWAP_CALLS = (torch.transpose, torch.swapaxes, torch.swapdims)


def moved(node: Call) -> tuple[Call, Callable[[Axes], Axes | None]] | None:
    """The operand of a call that only moves entries, and the function that maps its axes."""
    sizes = shape(node)
    if sizes is None or not node.args:
        return None
    args = node.args
    if is_method(node, *_VIEWS) or is_call(node, *_VIEW_CALLS):
        return args[0], lambda axes: axes.view(sizes)
    if is_method(node, "contiguous", "clone"):
        return args[0], lambda axes: axes
    if is_method(node, "expand", "expand_as", "broadcast_to"):
        return args[0], lambda axes: axes.expand(sizes)
    if is_method(node, *_SWAPS) or is_call(node, *_SWAP_CALLS):
        operands = arguments(node, "input", *(("dim0", "dim1") if node.kwargs else (None, None)))
        return operands and (operands[0], lambda axes: axes.swap(*operands[1:]))
    if is_method(node, "t") or (is_call(node, getattr) and args[1] in ("mT", "T")):
        return args[0], lambda axes: axes.swap(-2, -1) if len(axes.dims) > 1 else None
    if is_method(node, "permute") or is_call(node, torch.permute):
        order = args[1:] or (node.kwargs.get("dims"),)
        order = order[0] if len(order) == 1 and isinstance(order[0], tuple | list) else order
        return args[0], lambda axes: axes.permute(order)
    if is_call(node, SELECT):
        return args[0], lambda axes: axes.select(args[1], args[2])
    if is_method(node, "narrow") or is_call(node, torch.narrow):
        return (args[0], lambda axes: axes.cut(*args[1:])) if len(args) == 4 else None
    if is_call(node, operator.getitem):
        return _item(node)
    return None


def arguments(node: Call, *names: str | None) -> tuple[Any, ...] | None:
    """A call's arguments in the order of ``names``, passed by position or by name; None if one is
    missing or there are more."""
    values = list(node.args)
    for name in names[len(values) :]:
        if name not in node.kwargs:
            return None
        values.append(node.kwargs[name])
    return tuple(values) if len(values) == len(names) else None


def _item(node: Call) -> tuple[Call, Callable[[Axes], Axes | None]] | None:
    """One of several chunks, or an index of integers, slices, None and Ellipsis."""
    base, key = node.args
    if isinstance(key, int) and (is_method(base, *_CUTS) or is_call(base, *_CUT_CALLS)):
        single = is_method(base, "unbind") or is_call(base, torch.unbind)
        default = 0 if single or len(base.args) < 3 else base.args[2]
        dim = base.args[1] if single and len(base.args) > 1 else base.kwargs.get("dim", default)
        if single:
            return base.args[0], lambda axes: axes.select(dim, key)
        sizes = [piece.size(dim) for piece in value(base)]
        key %= len(sizes)
        return base.args[0], lambda axes: axes.cut(dim, sum(sizes[:key]), sizes[key])
    keys = key if isinstance(key, tuple) else (key,)
    known = (int, slice, type(None), type(Ellipsis))
    if shape(base) is None or not all(isinstance(entry, known) for entry in keys):
        return None
    return base, lambda axes: _indexed(axes, keys)


def _indexed(axes: Axes, keys: tuple[Any, ...]) -> Axes | None:
    if any(isinstance(entry, bool) for entry in keys):
        return None
    real = sum(entry is not None and entry is not Ellipsis for entry in keys)
    dots = (slice(None),) * (len(axes.dims) - real)
    if Ellipsis in keys:
        place = keys.index(Ellipsis)
        keys = keys[:place] + dots + keys[place + 1 :]
    result: Axes | None = axes
    dim = 0
    for key in keys:
        if result is None:
            return None
        if key is None:
            result = Axes((*result.dims[:dim], (), *result.dims[dim:]), result.start)
            dim += 1
        elif isinstance(key, int):
            result = result.select(dim, key)
        else:
            if key != slice(None):
                result = _sliced(result, dim, key)
            dim += 1
    return result


def _sliced(axes: Axes, dim: int, key: slice) -> Axes | None:
    size = 1
    for stretch in axes.dims[dim]:
        size *= stretch.size
    try:
        first, last, step = key.indices(size)
    except TypeError:  # a bound that the graph computes
        return None
    return axes.cut(dim, first, last - first) if step == 1 and last > first else None
