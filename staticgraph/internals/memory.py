"""Memory by private names of torch, what a failed capture left open and the workspaces of matrix
products; and what the C library does with memory that a step on a CPU frees.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

import torch

# Options of glibc's mallopt (malloc.h), and their values: blocks up to the largest size that it
# takes from its heap, of which this much may be free at the end.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = (-3, 32 << 20), (-1, 1 << 30)


@cache
def keep_freed_memory() -> None:
    """Makes glibc keep what a step frees for the next one, in this process, unless the user's
    environment sets up malloc.

    Otherwise it returns the end of its heap to the system in most steps, and the next ones fault
    their pages in again: 10,000 faults and a quarter of the time of a step of a GMT over 128
    molecules (AMD EPYC, 2026-11-30, by a script that is not kept).
    """
    if sys.platform != "linux" or any(_sets_up_malloc(name) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(*_MMAP_THRESHOLD)
        mallopt(*_TRIM_THRESHOLD)


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
