"""Which memory belongs to batches of fixed shape, so that a tensor may be asked for it.

A layer that is called outside of any forward of this library gets tensors alone. Whether they are
a batch's, padding included, is told by where they stand: all arrays of a batch are views of one
buffer, and buffers are few and noted here as they are made. A view of the real rows alone is none
of them: it has another length than the arrays have. Nothing is done when a batch is handed
out or a tensor is read; who never asks pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class _Noted(NamedTuple):
    """A buffer, and how many rows a batch's arrays in it may have."""

    storage: StorageWeakRef
    lengths: frozenset[int]


_NOTED: dict[tuple[torch.device, int], _Noted] = {}
# Above this the entries whose memory is gone are swept out before another is made.
_MANY = 256


def note(buffer: Tensor, lengths: frozenset[int]) -> None:
    """Says that a tensor's memory carries a batch, for as long as that memory lives.

    Args:
        buffer: the tensor.
        lengths: how many rows the batch's arrays have, padding included.
    """
    # A probe's batches have no memory, nor have those that a forward copies while it is traced.
    if torch.compiler.is_compiling() or type(buffer) is not Tensor:
        return
    if len(_NOTED) > _MANY:
        for key in [key for key, held in _NOTED.items() if held.storage.expired()]:
            del _NOTED[key]
    storage = buffer.untyped_storage()
    _NOTED[buffer.device, storage.data_ptr()] = _Noted(StorageWeakRef(storage), lengths)


def stands_in_batch(value: object) -> bool:
    """Whether a tensor is a view of a batch's memory, with padding."""
    if type(value) is not Tensor or not _NOTED:
        return False
    try:
        place = value.untyped_storage().data_ptr()
    except NotImplementedError:  # torch.func's wrappers and sparse tensors stand nowhere
        return False
    held = _NOTED.get((value.device, place))
    if held is None or held.storage.expired():
        return False
    return not held.lengths.isdisjoint(value.shape)


_WHEN_USED: list[Callable[[], object]] = []


def when_used(ask: Callable[[], object]) -> None:
    """Has ``ask`` called once, when batches are first iterated in a process that has imported
    PyG's layers: the rooms above this one make these ask where their tensors stand."""
    _WHEN_USED.append(ask)


def used() -> None:
    """Batches are iterated; see :func:`when_used`."""
    while _WHEN_USED and "torch_geometric.nn" in sys.modules:
        _WHEN_USED.pop()()
