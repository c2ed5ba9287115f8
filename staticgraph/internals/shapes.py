"""Derives result shapes of common row-wise operations from their arguments alone.

The problem: for tensors without memory, torch finds the shape of a sum by running Python code that
queries strides, dtypes and devices again and again: 150 microseconds where a real sum of small
tensors takes five. The idea: if every operand is contiguous, so is the result, its shape is that of
the broadcast operands, and if they share a dtype, the result has it, too. The invariant: a derived
result is what torch would find; every other case is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["told"]

aten: Any = torch.ops.aten


class NewTensor(NamedTuple):
    """A new contiguous tensor.

    Attributes:
        shape: its sizes.
        dtype: its dtype.
    """

    shape: Sequence[int]
    dtype: torch.dtype


# A new tensor, the operand that was written to, or None if torch must decide.
Told = NewTensor | Tensor | None


def told(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Told:
    """Returns the result of an operation, or None if torch must decide.

    Args:
        func: an operation of ``torch.ops``.
        args, kwargs: its arguments, whose tensors are dense and on one device.
    """
    if kwargs:
        return _new(args, kwargs) if func in NEW else None
    rule = RULES.get(func)
    return rule(args) if rule is not None else None


def _pointwise(args: Sequence[Any], rows: bool = True) -> NewTensor | None:
    """Result for operands of one dtype, and numbers that do not change it."""
    shape: Sequence[int] | None = None
    dtype = None
    for value in args:
        if isinstance(value, Tensor):
            if rows and not value.is_contiguous():
                return None
            if shape is None:
                shape, dtype = value.shape, value.dtype
            elif value.dtype is not dtype:
                return None
            elif value.shape != shape:
                shape = _broadcast(shape, value.shape)
                if shape is None:
                    return None
    if shape is None or dtype is None or dtype is torch.bool:
        return None
    numbers = (int, float) if dtype.is_floating_point else (int,)
    for value in args:
        if not (isinstance(value, Tensor) or value is None or type(value) in numbers):
            return None
    return NewTensor(shape, dtype)


def _of_floats(args: Sequence[Any]) -> NewTensor | None:
    found = _pointwise(args)
    return found if found is not None and found.dtype.is_floating_point else None


def _of_bits(args: Sequence[Any]) -> NewTensor | None:
    """Result for bool or integer operands, all tensors."""
    if not all(isinstance(value, Tensor) for value in args):
        return None
    first = args[0].dtype
    if first is not torch.bool:
        return _pointwise(args)
    shape = args[0].shape
    for value in args:
        if value.dtype is not first or not value.is_contiguous():
            return None
        if value.shape != shape:
            shape = _broadcast(shape, value.shape)
            if shape is None:
                return None
    return NewTensor(shape, first)


def _truth(args: Sequence[Any]) -> NewTensor | None:
    found = _pointwise(args)
    return None if found is None else NewTensor(found.shape, torch.bool)


def _where(args: Sequence[Any]) -> NewTensor | None:
    condition, *chosen = args
    if condition.dtype is not torch.bool or not condition.is_contiguous():
        return None
    found = _pointwise(chosen)
    if found is None:
        return None
    shape = _broadcast(found.shape, condition.shape)
    return None if shape is None else NewTensor(shape, found.dtype)


def _written(args: Sequence[Any]) -> Tensor | None:
    """Returns the first operand, if the value written to it has its shape and dtype."""
    found = _pointwise(args, rows=False)
    into = args[0]
    if found is None or found.shape != into.shape or not found.dtype.is_floating_point:
        return None
    return into if into.is_contiguous() else None


def _product(args: Sequence[Any]) -> NewTensor | None:
    """Result of a product of two matrices, with a row to add if there are three operands."""
    *added, a, b = args
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or a.dtype is not b.dtype:
        return None
    shape = (a.shape[0], b.shape[1])
    for row in added:
        if row.dtype is not a.dtype or _broadcast(shape, row.shape) != shape:
            return None
    return NewTensor(shape, a.dtype)


def _joined(args: Sequence[Any]) -> NewTensor | None:
    """Result of a concatenation along an axis."""
    parts, axis = args[0], args[1] if len(args) > 1 else 0
    first = parts[0]
    rank = first.dim()
    axis = axis + rank if axis < 0 else axis
    if not 0 <= axis < rank:
        return None
    shape, total = list(first.shape), 0
    for part in parts:
        if part.dim() != rank or part.dtype is not first.dtype or not part.is_contiguous():
            return None
        total += part.shape[axis]
        shape[axis] = part.shape[axis]
        if list(part.shape) != shape:
            return None
    shape[axis] = total
    return NewTensor(shape, first.dtype)


def _sum(args: Sequence[Any]) -> NewTensor | None:
    """Result of a sum over some axes, or over all if none are given."""
    x, axes = args[0], args[1] if len(args) > 1 else None
    if not x.is_contiguous() or not x.dtype.is_floating_point:
        return None
    rank, kept = x.dim(), len(args) > 2 and args[2]
    if not all(-rank <= axis < rank for axis in axes or ()):
        return None
    gone = {axis % rank for axis in axes} if axes else set(range(rank))
    sizes = [1 if axis in gone else rows for axis, rows in enumerate(x.shape)]
    return NewTensor(sizes if kept else [sizes[k] for k in range(rank) if k not in gone], x.dtype)


def _selected(args: Sequence[Any]) -> NewTensor | None:
    """Result of selecting rows along an axis."""
    x, axis, index = args
    if not x.is_contiguous() or index.dim() != 1 or not -x.dim() <= axis < x.dim():
        return None
    shape = list(x.shape)
    shape[axis] = index.shape[0]
    return NewTensor(shape, x.dtype)


def _gathered(args: Sequence[Any]) -> NewTensor | None:
    """Result of gathering values with an index of the same rank."""
    x, axis, index = args
    fits = x.dim() == index.dim() and -x.dim() <= axis < x.dim() and x.dim() > 0
    inside = all(given <= own for given, own in zip(index.shape, x.shape, strict=False))
    # The index may be longer along the axis.
    return NewTensor(index.shape, x.dtype) if fits and (inside or x.dim() == 1) else None


def _like_first(args: Sequence[Any]) -> NewTensor | None:
    """Result with the shape and dtype of the operand."""
    x = args[0]
    return NewTensor(x.shape, x.dtype) if x.is_contiguous() else None


def _new(args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewTensor | None:
    """Result of the given size, with the dtype of the operand unless one is given."""
    like, size = args
    if kwargs.keys() - NEW_OPTIONS or not all(type(rows) is int for rows in size):
        return None
    if kwargs.get("layout") not in (None, torch.strided) or kwargs.get("pin_memory"):
        return None
    if kwargs.get("device") not in (None, like.fake_device):
        return None
    return NewTensor(tuple(size), kwargs.get("dtype") or like.dtype)


def _broadcast(one: Sequence[int], other: Sequence[int]) -> Sequence[int] | None:
    """Returns the one of two shapes that the other broadcasts to; None if neither does."""
    if _covers(one, other):
        return one
    return other if _covers(other, one) else None


def _covers(large: Sequence[int], small: Sequence[int]) -> bool:
    if len(large) < len(small):
        return False
    pairs = zip(reversed(large), reversed(small), strict=False)
    return all(given in (own, 1) for own, given in pairs)


def _rules() -> dict[Any, Callable[[Sequence[Any]], Told]]:
    arithmetic = (
        *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.mul.Scalar, aten.neg.default),
        *(aten.abs.default, aten.relu.default, aten.clamp.default, aten.clamp_min.default),
        *(aten.maximum.default, aten.minimum.default, aten.threshold_backward.default),
    )
    of_floats = (
        *(aten.div.Tensor, aten.div.Scalar, aten.pow.Tensor_Scalar, aten.exp.default),
        *(aten.log.default, aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default),
        *(aten.tanh.default, aten.sigmoid.default),
        *(aten.tanh_backward.default, aten.sigmoid_backward.default),
    )
    comparing = [getattr(getattr(aten, name), kind) for name in COMPARING for kind in KINDS]
    written = (aten.add_.Tensor, aten.mul_.Tensor, aten.div_.Tensor)
    return {
        **dict.fromkeys(arithmetic, _pointwise),
        **dict.fromkeys(of_floats, _of_floats),
        **dict.fromkeys(comparing, _truth),
        **dict.fromkeys(
            (aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_not.default), _of_bits
        ),
        **dict.fromkeys(written, _written),
        aten.where.self: _where,
        aten.mm.default: _product,
        aten.addmm.default: lambda args: _product(args) if len(args) == 3 else None,
        aten.cat.default: _joined,
        **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), _sum),
        aten.index_select.default: _selected,
        aten.gather.default: _gathered,
        aten.clone.default: _like_first,
    }


COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")
KINDS = ("Tensor", "Scalar")
NEW: frozenset[Any] = frozenset((aten.new_zeros.default, aten.new_empty.default))
NEW_OPTIONS = frozenset(("dtype", "layout", "device", "pin_memory"))
RULES = _rules()
