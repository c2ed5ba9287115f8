"""Which kernels layers choose while a step is only looked at, not run for its results.

The problem: layers choose their kernels by the device of a tensor, and on a CPU by its size, since
small products gain nothing there. A probe of memory reads steps of several sizes over fake CPU
tensors that stand for a GPU's, or for larger ones: where small and large go different ways no sum
of counts fits both. The idea: while :func:`choosing` is entered, layers choose as large batches do,
and for the device that is meant.

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
    """Layers called in this thread choose as for large batches; for ``device``, where given."""
    before = _HERE.device, _HERE.large
    _HERE.device, _HERE.large = device, True
    try:
        yield
    finally:
        _HERE.device, _HERE.large = before


def device_type(value: Tensor) -> str:
    """The type of device to choose a kernel for."""
    if traced_here():
        return value.device.type
    return _HERE.device or value.device.type


def any_size() -> bool:
    """Whether what is too small to gain is to be taken as large."""
    return not traced_here() and _HERE.large
