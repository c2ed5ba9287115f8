"""Memory by torch's private names: what a failed capture left open, and the workspaces of matrix
products.
"""

from __future__ import annotations

from typing import Any

import torch


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
