"""What torch's caching allocator would reserve for a sequence of allocations: arithmetic only.

The reserved bytes exceed those in use, since memory is taken from the driver in segments and free
memory is fragmented. The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default
settings: two pools by size; segments of 2 MiB for small requests and of 20 MiB (or the request,
rounded up to 2 MiB) for large ones; the smallest free piece that suffices; a remainder that is
large enough is split off; neighbors are merged when freed. It does not return segments to the
driver, and it does not distinguish streams.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

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
