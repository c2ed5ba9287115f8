"""Which kernels layers choose while a step is only analysed, not run for its results.

The problem: layers choose their kernels by the device of a tensor, and on a CPU also by its size,
since small products gain nothing there. A memory probe runs steps of several sizes on fake CPU
tensors that stand for tensors on a GPU, or for larger ones: where small and large sizes take
different paths, no formula in the counts fits both. The idea: inside :func:`choosing`, layers
choose as they do for large batches, and for the intended device.

Invariant: outside of it, and inside a compiled step, the tensor alone decides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from staticgraph.internals.dispatch import traced_here


class _Here(threading.local):
    def __init__(self) -> None:
        self.device: str | None = None
        self.large = False


_HERE = _Here()


@contextmanager
def choosing(device: str | None = None) -> Iterator[None]:
    """Makes layers called in this thread choose as for large batches, for ``device`` if given."""
    before = _HERE.device, _HERE.large
    _HERE.device, _HERE.large = device, True
    try:
        yield
    finally:
        _HERE.device, _HERE.large = before


def device_type(value: Tensor) -> str:
    """Returns the device type to choose a kernel for."""
    if traced_here():
        return value.device.type
    return _HERE.device or value.device.type


def any_size() -> bool:
    """Whether tensors too small to gain from a kernel are treated as large."""
    return not traced_here() and _HERE.large
