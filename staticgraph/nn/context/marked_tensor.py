"""Marks tensors that have a special meaning as an index: a subclass over a tensor of any kind.

``Tensor.as_subclass`` accepts plain tensors alone: a fake tensor, as used by a probe, is a subclass
already and is tied to one Python object. There, the mark is a class derived from both, set on an
alias; results computed from it have the tensor's own type again, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TypeVar

from torch import Tensor

from staticgraph.nn.context.bound_batch import traced_here

_ASKED: ContextVar[list[str] | None] = ContextVar("asked_sizes", default=None)

Kind = TypeVar("Kind", bound=Tensor)


def marked(tensor: Tensor, kind: type[Kind]) -> Kind:
    """Returns the same values as an instance of ``kind``.

    Args:
        tensor: any shape and dtype; it stays unchanged itself.
        kind: a subclass of Tensor that defines only ``__torch_function__``, has no attributes of
            its own and is recognised by :func:`isinstance`.
    """
    if type(tensor) is Tensor:
        return tensor.as_subclass(kind)
    if isinstance(tensor, kind):  # ``batch.long()`` is ``batch`` itself
        return tensor
    alias = tensor.view(tensor.shape)
    alias.__class__ = _both(kind, type(tensor))
    return alias  # pyright: ignore[reportReturnType]


@cache
def _both(kind: type[Tensor], stock: type[Tensor]) -> type[Tensor]:
    return type(kind.__name__, (kind, stock), {})


class GraphsOfRows(Tensor):
    """The graphs of rows of another level, such as those of edges: ``batch[edge_index[0]]``."""


def note_size(what: str) -> None:
    """Notes, outside of a trace, that a size is read from a marked index."""
    if not traced_here() and (names := _ASKED.get()) is not None:
        names.append(what)


@contextmanager
def asks() -> Iterator[list[str]]:
    """Collects the sizes that are read from marked indices inside the block."""
    names: list[str] = []
    token = _ASKED.set(names)
    try:
        yield names
    finally:
        _ASKED.reset(token)
