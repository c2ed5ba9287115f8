"""Live bytes, counted storage by storage while operations run, without an allocator.

The problem: finding the peak of a step for a device that is not present, or without doing its
arithmetic. The idea: every tensor that an operation returns passes a dispatch mode; its storage is
counted when it is first seen and uncounted when Python (or autograd, which shares the object)
releases it. Over fake tensors the step runs in milliseconds and takes no memory; over real ones the
count is of real bytes.

The invariant: ``live_bytes`` is the sum over storages that are alive and were seen. Memory that a
kernel allocates and frees internally is not seen; the cases that matter on a CPU are added by rule:
operands cast to a common dtype, and the backward of attention. torch's own
``torch.distributed._tools.mem_tracker`` counts in the same way.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from staticgraph.internals.dispatch import TorchDispatchMode, read_number, to_copy, tree_leaves
from staticgraph.internals.fakes import ask_device

# Of the CUDA caching allocator (c10/cuda/CUDACachingAllocator.h and CUDAAllocatorConfig.h): its
# smallest block, the largest that counts as small, the segments that small and other blocks are cut
# from, and from which size on a block has its own segment, a multiple of the last number.
CUDA_BLOCK, SMALL_SIZE = 512, 1 << 20
SMALL_BUFFER, LARGE_BUFFER = 2 << 20, 20 << 20
MIN_LARGE_ALLOC, ROUND_LARGE = 10 << 20, 2 << 20
# Elementwise operations whose operands keep their dtypes: a condition, and a copy that is the cast.
UNCAST = frozenset({torch.ops.aten.where, torch.ops.aten.copy_, to_copy})
ATTENTION_BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"


class CachingPool:
    """Takes segments as the caching allocator does.

    Attributes:
        reserved_bytes: the bytes of all segments.
    """

    def __init__(self) -> None:
        self.reserved_bytes: int = 0
        # Pieces of segments: bytes, segment and place in it, as the allocator's search sorts them.
        self._free: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
        self._used: dict[int, tuple[bool, tuple[int, int, int]]] = {}

    def allocate(self, key: int, nbytes: int) -> None:
        """Allocates memory under a key; does nothing for zero bytes."""
        if nbytes == 0:
            return
        size = -(-nbytes // CUDA_BLOCK) * CUDA_BLOCK
        small = size <= SMALL_SIZE
        free = self._free[small]
        at = bisect_left(free, (size, -1, -1))
        if at < len(free):
            nbytes, segment, start = free.pop(at)
        else:
            nbytes, segment, start = -(-size // ROUND_LARGE) * ROUND_LARGE, self.reserved_bytes, 0
            if size < MIN_LARGE_ALLOC:
                nbytes = SMALL_BUFFER if small else LARGE_BUFFER
            self.reserved_bytes += nbytes
        if nbytes - size >= (CUDA_BLOCK if small else SMALL_SIZE + 1):
            insort(free, (nbytes - size, segment, start + size))
            nbytes = size
        self._used[key] = small, (nbytes, segment, start)

    def free(self, key: int) -> None:
        """Returns a key's memory, joined with what is free beside it; ignores an unknown key."""
        if key not in self._used:
            return
        small, (nbytes, segment, start) = self._used.pop(key)
        free = self._free[small]
        for other in [piece for piece in free if piece[1] == segment]:
            if other[2] + other[0] == start:
                start = other[2]
            elif start + nbytes != other[2]:
                continue
            nbytes += other[0]
            free.remove(other)
        insort(free, (nbytes, segment, start))


class LiveStorages(TorchDispatchMode):
    """Counts storages from the moment it is entered.

    Attributes:
        live_bytes: the bytes of all storages alive now.
        peak_bytes: the maximum since :meth:`reset_peak`.
        moments: each operation since :meth:`reset_peak`, and ``live_bytes`` at it, including its
            casts.

    Args:
        block: every storage is rounded up to a multiple of it.
        casts: whether to count the copies that a CPU makes of operands of mixed dtypes.
        pool: notified of every storage, where given.
    """

    def __init__(
        self, block: int = 1, casts: bool = False, pool: CachingPool | None = None
    ) -> None:
        super().__init__()
        self.live_bytes: int = 0
        self.peak_bytes: int = 0
        self.moments: list[tuple[Any, int]] = []
        self._updates = False
        self._block = block
        self._casts = casts
        self._pool = pool
        # By address: what says that a storage is gone, and its bytes.
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no step here is traced; checking at every operation takes a tenth of it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is ask_device:  # half of all calls; they allocate nothing
            return args[0].fake_device
        if self._updates and func is read_number:
            return 1.0
        out = func(*args, **kwargs) if kwargs else func(*args)
        if isinstance(out, Tensor):
            self._count(out)
        elif out is not None:
            self.watch(leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        now = self.live_bytes
        if self._casts and (rule := _rule_of(func)):
            now += rule(args)
        self.moments.append((func, now))
        self.peak_bytes = max(self.peak_bytes, now)
        return out

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Counts tensors that were created before the mode was entered."""
        for tensor in tensors:
            self._count(tensor)

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, -(-storage.nbytes() // self._block) * self._block
        gone, before = self._alive.get(key, (None, 0))
        if gone is None:
            # weakref.finalize would also work, at several times the cost for every tensor.
            gone = weakref.ref(storage, partial(self._gone, key))
        elif before == nbytes:
            return
        self._alive[key] = gone, nbytes
        if self._pool is not None:
            self._pool.free(key)
            self._pool.allocate(key, nbytes)
        self.live_bytes += nbytes - before
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def reset_peak(self, update: bool = False) -> None:
        """Resets moments, and the peak to live bytes.

        Args:
            update: an optimizer steps now, which may read a number from a fake tensor, its step
                count: it is 1.0. Anywhere else a read of data is an error and remains one.
        """
        self._updates = update
        self.moments, self.peak_bytes = [], self.live_bytes

    def peak(self) -> int:
        """Returns ``peak_bytes``."""
        return self.peak_bytes

    def _gone(self, key: int, _: weakref.ref[Any]) -> None:
        self.live_bytes -= self._alive.pop(key)[1]
        if self._pool is not None:
            self._pool.free(key)


@cache
def _rule_of(func: Any) -> Callable[[tuple[Any, ...]], int] | None:
    """The function that computes, from an operation's arguments, the bytes that its CPU kernel
    allocates and frees internally; None for most operations."""
    if func.name() == ATTENTION_BACKWARD:
        return _sdpa_bytes
    pointwise = torch.Tag.pointwise in getattr(func, "tags", ())
    return _cast_bytes if pointwise and func.overloadpacket not in UNCAST else None


def _cast_bytes(args: tuple[Any, ...]) -> int:
    """The bytes that an elementwise operation on a CPU copies to bring its operands to one dtype.

    TensorIterator casts on the fly on CUDA, but copies each operand on a CPU
    (aten/src/ATen/TensorIterator.cpp, ``compute_types``). Under autocast that is most of the memory
    taken by the sum of a bfloat16 and a float32 tensor.
    """
    operands = [a for a in args if isinstance(a, Tensor) and a.dim()]
    if len({a.dtype for a in operands}) < 2:
        return 0
    common = operands[0].dtype
    for operand in operands[1:]:
        common = torch.promote_types(common, operand.dtype)
    return sum(a.numel() * common.itemsize for a in operands if a.dtype != common)


def _sdpa_bytes(args: tuple[Any, ...]) -> int:
    """The temporary bytes of the backward of attention on a CPU: a copy of a gradient that is not
    contiguous with its heads next to each other in each row (measured with torch's profiler)."""
    grad = args[0]
    return 0 if grad.transpose(1, 2).is_contiguous() else grad.numel() * grad.itemsize
