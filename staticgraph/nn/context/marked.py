"""Tensors that mean something more as an index: a subclass over a tensor of any kind.

``Tensor.as_subclass`` takes plain tensors alone: a fake tensor, which is what a probe runs on, is a
subclass already and has one Python object for ever. There the mark is a class of both, put on an
alias; what is computed from it is of the tensor's own kind again, as everywhere.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from torch import Tensor

Kind = TypeVar("Kind", bound=Tensor)


def marked(tensor: Tensor, kind: type[Kind]) -> Kind:
    """The same values as one of ``kind``, a subclass of Tensor with ``__torch_function__`` alone.

    Args:
        tensor: any shape and dtype; itself it stays as it is.
        kind: has no attributes of its own and is told apart by :func:`isinstance`.
    """
    if type(tensor) is Tensor:
        return tensor.as_subclass(kind)
    alias = tensor.view(tensor.shape)
    alias.__class__ = _both(kind, type(tensor))
    return alias  # pyright: ignore[reportReturnType]


@cache
def _both(kind: type[Tensor], own: type[Tensor]) -> type[Tensor]:
    return type(kind.__name__, (kind, own), {})
