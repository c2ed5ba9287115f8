"""The containers in which a model returns its tensors, taken apart and put together again.

Models return a tensor, or several: in tuples, lists, dicts, named tuples, ordered dicts,
dataclasses, and any nesting of these. Whatever is done to an output (padding zeroed, rows cut,
recorded memory copied) is done to every tensor in it, and the caller gets the same container back.
The invariant: every traversal of an output uses these functions, so that no tensor is seen by one
and missed by another. An object of any other class is a leaf: see :func:`opaque`.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from staticgraph.internals.dispatch import copied

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.Size, enum.Enum,
)  # fmt: skip


def parts_of(out: object) -> list[tuple[Any, Any]] | None:
    """Returns a container's items, each with its key, field or position; None for other values."""
    if isinstance(out, Tensor | torch.Size):
        return None
    if isinstance(out, tuple | list):
        return list(zip(getattr(out, "_fields", range(len(out))), out, strict=True))
    if isinstance(out, dict):
        return list(out.items())
    if dataclasses.is_dataclass(out) and not isinstance(out, type):
        return [(field.name, getattr(out, field.name)) for field in dataclasses.fields(out)]
    return None


def with_parts(out: Any, values: Sequence[Any]) -> Any:
    """Returns a container like another, with other items, in the order of :func:`parts_of`."""
    kind = type(out)
    if kind is dict:
        return dict(zip(out, values, strict=True))
    if isinstance(out, tuple | list):
        return kind(*values) if hasattr(out, "_fields") else kind(values)
    if kind is OrderedDict:  # torch 2.15 does not trace a copy of one
        return OrderedDict(zip(out, values, strict=True))
    if isinstance(out, dict):
        rebuilt = copy.copy(out)
        for key, value in zip(list(out), values, strict=True):
            rebuilt[key] = value
        return rebuilt
    rebuilt = copied(out)
    for field, value in zip(dataclasses.fields(out), values, strict=True):
        object.__setattr__(rebuilt, field.name, value)  # works for frozen ones, too
    return rebuilt


def mapped(change: Callable[[Tensor], Any], out: Any) -> Any:
    """Returns an output with every tensor in it changed."""
    if isinstance(out, Tensor):
        return change(out)
    parts = parts_of(out)
    if parts is None:
        return out
    return with_parts(out, [mapped(change, value) for _, value in parts])


def leaves_of(out: Any) -> list[Any]:
    """Returns everything in an output that is not a container."""
    parts = parts_of(out)
    return [out] if parts is None else [leaf for _, value in parts for leaf in leaves_of(value)]


def tensors_in(out: Any) -> list[Tensor]:
    """Returns the tensors of an output, in the order of :func:`leaves_of`."""
    return [leaf for leaf in leaves_of(out) if isinstance(leaf, Tensor)]


def with_leaves(out: Any, leaves: Iterator[Any]) -> Any:
    """Returns an output like another, with other leaves, in the order of :func:`leaves_of`."""
    parts = parts_of(out)
    if parts is None:
        return next(leaves)
    return with_parts(out, [with_leaves(value, leaves) for _, value in parts])


def opaque(out: Any) -> str | None:
    """Returns the class of the first leaf of an output that may hide tensors; None without one."""
    for leaf in leaves_of(out):
        if not isinstance(leaf, (Tensor, *_PLAIN)):
            return type(leaf).__name__
    return None
