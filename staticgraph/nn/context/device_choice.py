"""For which device layers choose their kernels while a step is only analysed.

A memory probe runs steps on fake CPU tensors that stand for tensors on a GPU; inside
:func:`choosing`, layers choose their attention path as they do there. Outside of it, and inside a
compiled step, the tensor alone decides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from staticgraph.nn.context.bound_batch import traced_here

_HERE = threading.local()


@contextmanager
def choosing(device: str | None) -> Iterator[None]:
    """Makes layers called in this thread choose as on ``device``, if given."""
    before = getattr(_HERE, "device", None)
    _HERE.device = device
    try:
        yield
    finally:
        _HERE.device = before


def device_type(value: Tensor) -> str:
    """Returns the device type to choose a kernel for."""
    chosen = None if traced_here() else getattr(_HERE, "device", None)
    return chosen or value.device.type
