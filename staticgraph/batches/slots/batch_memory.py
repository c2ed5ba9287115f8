"""Which memory belongs to batches of fixed shape, so that this can be checked for a tensor.

A layer called outside any forward of this library receives tensors alone. Whether they are a
batch's, including padding, follows from their address: all arrays of a batch are views of one
buffer, and buffers are few and are noted here when they are made. A view of the real rows alone
does not count: its length differs from those of the arrays. Handing out a batch or reading a tensor
does no extra work; only the check itself has a cost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class _Noted(NamedTuple):
    """A buffer, and the possible numbers of rows of a batch's arrays in it."""

    storage: StorageWeakRef
    lengths: frozenset[int]


_NOTED: dict[tuple[torch.device, int], _Noted] = {}
# Above this number, entries whose memory is gone are removed before another is made.
_MANY = 256


def note(buffer: Tensor, lengths: frozenset[int]) -> None:
    """Notes that a tensor's memory holds a batch, for as long as that memory lives.

    Args:
        buffer: the tensor.
        lengths: how many rows the batch's arrays have, padding included.
    """
    if type(buffer) is not Tensor:  # a probe's batches have no memory
        return
    if len(_NOTED) > _MANY:
        for key in [key for key, held in _NOTED.items() if held.storage.expired()]:
            del _NOTED[key]
    storage = buffer.untyped_storage()
    _NOTED[buffer.device, storage.data_ptr()] = _Noted(StorageWeakRef(storage), lengths)


def stands_in_batch(value: object) -> bool:
    """Whether a tensor is a view of a batch's memory, including padding."""
    if type(value) is not Tensor or not _NOTED:
        return False
    try:
        place = value.untyped_storage().data_ptr()
    except NotImplementedError:  # torch.func's wrappers and sparse tensors have no address
        return False
    held = _NOTED.get((value.device, place))
    if held is None or held.storage.expired():
        return False
    return not held.lengths.isdisjoint(value.shape)


_WHEN_USED: list[Callable[[], object]] = []


def when_used(ask: Callable[[], object]) -> None:
    """Registers a function to call once, when batches are first iterated.

    It waits until the process has imported PyG's layers, and lets the packages above this one make
    these layers check where their tensors come from.
    """
    _WHEN_USED.append(ask)


def used() -> None:
    """Called when batches are iterated; see :func:`when_used`."""
    while _WHEN_USED and "torch_geometric.nn" in sys.modules:
        _WHEN_USED.pop()()
