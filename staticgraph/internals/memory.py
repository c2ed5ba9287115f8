"""Memory by private names of torch, what a failed capture left open and the workspaces of matrix
products; and what the C library does with memory that a step on a CPU frees.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

# Options of glibc's mallopt (malloc.h): how much may be free at the end of the heap, up to which
# size a block is of the heap, and how many blocks may be mappings of their own; its default.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, MMAP_MAX, MAPPINGS = -1, -3, -4, 65536
Mallopt = Callable[[int, int], int]


@cache
def keep_freed_memory() -> Mallopt | None:
    """Makes glibc keep what a step on a CPU frees for the next one: 2 GiB, in this process.

    Otherwise it returns the end of its heap to the system in most steps, and the next ones fault
    their pages in again: 10,000 faults and a quarter of the time of a step of a GMT over 128
    proteins (AMD EPYC, 2026-11-30, by a script that is not kept).

    Returns:
        ``mallopt``, with which a step forbids mappings: blocks of over 32 MiB would be new in each
        step. None on other systems, and where the user's environment sets up malloc.
    """
    if sys.platform != "linux" or any(map(_sets_up_malloc, os.environ)):
        return None
    mallopt: Mallopt | None = getattr(ctypes.PyDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that it takes
    return mallopt


def _sets_up_malloc(variable: str) -> bool:
    return variable == "GLIBC_TUNABLES" or variable.startswith("MALLOC_")


def end_allocations(device_index: int, pool: Any) -> None:
    """Stops the allocator from serving the device from this pool."""
    torch._C._cuda_endAllocateToPool(device_index, pool)


def drop_workspaces() -> None:
    """Frees cuBLAS's workspaces of all streams and threads; the next product allocates them
    again."""
    torch._C._cuda_clearCublasWorkspaces()


def release(device_index: int, pool: Any) -> None:
    """Removes one user of the pool; the memory of a pool without users is freed."""
    torch._C._cuda_releasePool(device_index, pool)
