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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.internals.dispatch import TorchDispatchMode, read_number, to_copy, tree_leaves
from staticgraph.internals.fakes import ask_device
from staticgraph.probing.step_reading import Part

# Names as in c10/cuda/CUDACachingAllocator.h and CUDAAllocatorConfig.h.
SMALL_SIZE = 1 << 20
SMALL_BUFFER = 2 << 20
MIN_LARGE_ALLOC = 10 << 20
LARGE_BUFFER = 20 << 20
ROUND_LARGE = 2 << 20
MIN_BLOCK_SIZE = 512


class PoolBlock(NamedTuple):
    """A piece of one segment; sorts by size, then by position, as in the allocator's search."""

    nbytes: int
    segment: int
    start: int


class CachingPool:
    """Simulates the pools and counts segments.

    Attributes:
        reserved_bytes: the bytes of all segments.
    """

    def __init__(self) -> None:
        self.reserved_bytes: int = 0
        self._segments = 0
        self._free: dict[bool, list[PoolBlock]] = {True: [], False: []}
        self._used: dict[int, tuple[bool, PoolBlock]] = {}

    def allocate(self, key: int, nbytes: int) -> None:
        """Allocates memory under a key; does nothing for zero bytes."""
        if nbytes == 0:
            return
        size = -(-nbytes // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE
        small = size <= SMALL_SIZE
        free = self._free[small]
        at = bisect_left(free, PoolBlock(size, -1, -1))
        piece = free.pop(at) if at < len(free) else self._segment(size, small)
        rest = piece.nbytes - size
        if rest >= MIN_BLOCK_SIZE if small else rest > SMALL_SIZE:
            insort(free, PoolBlock(rest, piece.segment, piece.start + size))
            piece = piece._replace(nbytes=size)
        self._used[key] = small, piece

    def free(self, key: int) -> None:
        """Returns a key's memory to the pool; unknown keys are ignored."""
        if key not in self._used:
            return
        small, piece = self._used.pop(key)
        free = self._free[small]
        for other in [p for p in free if p.segment == piece.segment]:
            if other.start + other.nbytes == piece.start:
                piece = PoolBlock(other.nbytes + piece.nbytes, piece.segment, other.start)
            elif piece.start + piece.nbytes == other.start:
                piece = piece._replace(nbytes=piece.nbytes + other.nbytes)
            else:
                continue
            free.remove(other)
        insort(free, piece)

    def _segment(self, size: int, small: bool) -> PoolBlock:
        if small:
            nbytes = SMALL_BUFFER
        elif size < MIN_LARGE_ALLOC:
            nbytes = LARGE_BUFFER
        else:
            nbytes = -(-size // ROUND_LARGE) * ROUND_LARGE
        self.reserved_bytes += nbytes
        self._segments += 1
        return PoolBlock(nbytes, self._segments, 0)


# The CUDA caching allocator's smallest block (c10/cuda/CUDACachingAllocator.h, kMinBlockSize).
CUDA_BLOCK = 512
# Elementwise operations whose operands keep their dtypes: a condition, and a copy that is the cast.
UNCAST = frozenset({torch.ops.aten.where, torch.ops.aten.copy_, to_copy})
ATTENTION_BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"


class LiveStorages(TorchDispatchMode):
    """Counts storages from the moment it is entered.

    Attributes:
        live_bytes: the bytes of all storages alive now.
        peak_bytes: the maximum since :meth:`reset_peak`.
        moments: ``live_bytes`` at every operation since :meth:`reset_peak`, including its casts.
        operations: a hash per moment, the same for the same operation.

    Args:
        block: every storage is rounded up to a multiple of it.
        casts: whether to count the copies that a CPU makes of operands of mixed dtypes.
        pool: notified of every storage, where given.
    """

    def __init__(
        self,
        block: int = 1,
        casts: bool = False,
        pool: CachingPool | None = None,
    ) -> None:
        super().__init__()
        self.live_bytes: int = 0
        self.peak_bytes: int = 0
        self.moments: list[int] = []
        self.operations: list[int] = []
        self._updates = False
        self._block = block
        self._casts = casts
        self._pool = pool
        self._sizes: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[Any]] = {}

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
        self.moments.append(now)
        self.operations.append(hash(func))
        self.peak_bytes = max(self.peak_bytes, now)
        return out

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Counts tensors that were created before the mode was entered."""
        for tensor in tensors:
            self._count(tensor)

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, -(-storage.nbytes() // self._block) * self._block
        size = self._sizes.get(key)
        if size == nbytes:
            return
        if size is None:
            # weakref.finalize would also work, at several times the cost for every tensor.
            self._alive[key] = weakref.ref(storage, partial(self._gone, key))
        self._sizes[key] = nbytes
        if self._pool is not None:
            self._pool.free(key)
            self._pool.allocate(key, nbytes)
        self.live_bytes += nbytes - (size or 0)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def reset_peak(self, update: bool = False) -> None:
        """Resets moments and operations, and the peak to live bytes.

        Args:
            update: an optimizer steps now, which may read a number from a fake tensor, its step
                count: it is 1.0. Anywhere else a read of data is an error and remains one.
        """
        self._updates = update
        self.moments, self.operations = [], []
        self.peak_bytes = self.live_bytes

    def part(self) -> Part:
        """What was in use since :meth:`reset_peak`."""
        return Part(self.peak_bytes, self.moments, self.operations)

    def _gone(self, key: int, _: weakref.ref[Any]) -> None:
        del self._alive[key]
        self.live_bytes -= self._sizes.pop(key)
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
