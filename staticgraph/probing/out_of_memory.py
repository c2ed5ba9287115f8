"""Distinguishing out of memory from every other error, by type and text.

torch raises a specific type for the caching allocator, but the libraries it calls do not: cuBLAS
and cuDNN report a status; Triton's launcher, the driver and the CPU allocator raise plain
RuntimeErrors. Any error that is not in the list below is some other error and must pass unchanged.
Triton's ``OutOfResources`` is one of those: it means the shared memory or registers of a single
kernel, which a smaller batch does not fix.
"""

from __future__ import annotations

import torch

# The text of each source, in lower case.
TEXTS = (
    "cuda out of memory",  # torch's CUDA allocator, where it is raised as a plain RuntimeError
    "cuda error: out of memory",  # the driver, through torch
    "triton error [cuda]: out of memory",  # Triton's launcher
    "cuda_error_out_of_memory",  # the driver, by the name of its status
    "cudaerrormemoryallocation",  # the runtime, likewise
    "cublas_status_alloc_failed",  # cuBLAS: no room for its workspace
    "cudnn_status_alloc_failed",
    "defaultcpuallocator: can't allocate memory",  # torch on the CPU
    "defaultcpuallocator: not enough memory",  # the same on Windows
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that device (or host) memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(t in str(error).lower() for t in TEXTS)
