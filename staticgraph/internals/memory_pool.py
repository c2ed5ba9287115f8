"""Memory of a capture: what a failed one left open, and the workspaces that products take."""

from __future__ import annotations

from typing import Any

import torch


def end_allocations(device_index: int, pool: Any) -> None:
    """The allocator serves the device from this pool no more."""
    torch._C._cuda_endAllocateToPool(device_index, pool)


def drop_workspaces() -> None:
    """Frees what cuBLAS has taken for each stream and thread; the next product takes it again."""
    torch._C._cuda_clearCublasWorkspaces()


def release(device_index: int, pool: Any) -> None:
    """One user of the pool less; memory of a pool without any is freed."""
    torch._C._cuda_releasePool(device_index, pool)
