"""A recorder without a GPU whose recordings share memory, as CUDA graphs of one pool do.

All tensors that a recording makes are in one arena. Memory freed while recording is reused by later
tensors, in this recording and in later ones; tensors still held when a recording ends keep theirs.
A replay repeats the noted calls on the noted addresses and does nothing else. Therefore an earlier
recording writes its temporaries to the memory of a later one's results, and reading those results
after the earlier one has run gives its values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from staticgraph.recording.graph_recorder import Recorded

ALIGNMENT = 64


class HostRead(RuntimeError):
    """A value was read on the host, where a capture would fail."""


class Arena:
    """Allocates from the lowest free address up; a block is free again once no tensor uses it.

    Args:
        nbytes: size of the arena.
    """

    def __init__(self, nbytes: int = 1 << 27) -> None:
        self._bytes = np.zeros(nbytes + ALIGNMENT, np.uint8)
        self._first = -self._bytes.ctypes.data % ALIGNMENT
        self._taken: list[tuple[int, int, StorageWeakRef]] = []
        self.most = 0  # bytes up to the highest address ever used

    def __contains__(self, value: Tensor) -> bool:
        return 0 <= value.data_ptr() - self._bytes.ctypes.data < self._bytes.nbytes

    @property
    def live(self) -> int:
        """Bytes that tensors use now."""
        return sum(end - start for start, end, held in self._taken if not held.expired())

    def like(self, value: Tensor) -> Tensor:
        """Returns a tensor with the same values and strides in the arena."""
        if not value.numel():
            return value
        nbytes = _bytes_of(value)
        self._taken = sorted(
            (block for block in self._taken if not block[2].expired()), key=lambda block: block[0]
        )
        start = self._first
        for taken, end, _ in self._taken:
            if start + nbytes <= taken:
                break
            start = max(start, -(-(end - self._first) // ALIGNMENT) * ALIGNMENT + self._first)
        assert start + nbytes <= self._bytes.nbytes, "the arena is full"
        copied = self._place_value(start, value)
        copied.copy_(value)
        self._taken.append((start, start + nbytes, StorageWeakRef(copied.untyped_storage())))
        self.most = max(self.most, start + nbytes)
        return copied

    def same(self, value: Tensor) -> Tensor:
        """Returns another tensor at the address of one in the arena, without keeping it in use."""
        if not value.numel() or value not in self:
            return value
        return self._place_value(value.data_ptr() - self._bytes.ctypes.data, value)

    def _place_value(self, start: int, value: Tensor) -> Tensor:
        memory = memoryview(self._bytes)[start : start + _bytes_of(value)]
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        return flat.view(value.dtype).as_strided(value.shape, value.stride())


def _bytes_of(value: Tensor) -> int:
    last = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return (last + 1) * value.element_size()


class _Noted(TorchDispatchMode):
    """One recording: the calls and the addresses that they use."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena
        self._calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise HostRead("operation not permitted when recording: a value is read on the host")
        storages = {
            value.untyped_storage()._cdata
            for value in tree_flatten((args, kwargs))[0]
            if isinstance(value, Tensor)
        }
        fixed = tree_map_only(Tensor, self._arena.same, (args, kwargs))
        out = func(*args, **kwargs)
        written: list[Tensor] = []

        def placed(value: Tensor) -> Tensor:
            if value.untyped_storage()._cdata in storages:
                return value  # a view, or a tensor that was written in place
            copied = self._arena.like(value)
            written.append(self._arena.same(copied))
            return copied

        result = tree_map_only(Tensor, placed, out)
        if written or func._schema.is_mutable:
            self._calls.append((func, *fixed, written))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, written in self._calls:
            storages = {
                value.untyped_storage()._cdata
                for value in tree_flatten((args, kwargs))[0]
                if isinstance(value, Tensor)
            }
            fresh = [
                value
                for value in tree_flatten(func(*args, **kwargs))[0]
                if isinstance(value, Tensor) and value.untyped_storage()._cdata not in storages
            ]
            for noted, value in zip(written, fresh, strict=True):
                noted.copy_(value)


class ArenaRecorder:
    """Records eager work in one arena, and counts its recordings."""

    compiles = False

    def __init__(self, device: torch.device | None = None) -> None:
        self.arena = Arena()
        self.recorded = 0
        self.closed = False

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        for _ in range(runs):
            body()

    def record(self, body: Callable[[], Any]) -> Recorded:
        assert not self.closed
        noted = _Noted(self.arena)
        with noted:
            result = body()
        self.recorded += 1
        return Recorded(noted.replay, result)

    def close(self) -> None:
        self.closed = True
