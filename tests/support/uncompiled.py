"""The loops of numba as the Python that they are: nothing is compiled.

A loop takes a second of processor time to compile for each type, and is then called once or twice:
over a graph of thirty nodes Python is through with it in milliseconds, by the same source. With
``NUMBA_DISABLE_JIT`` numba leaves its functions as they are, but has no Python for the pointers
that CPU kernels are given; here they are ctypes'. Beyond that, a division by zero is as quiet as it
is when it is compiled.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numba.core.extending import _Intrinsic

from staticgraph.kernels import addresses

NOTHING = ctypes.c_byte()


def begin() -> None:
    """From now on, in this process, which was started with ``NUMBA_DISABLE_JIT=1``."""
    assert os.environ.get("NUMBA_DISABLE_JIT") == "1"
    _Intrinsic.__call__ = _call
    np.seterr(all="ignore")


def _call(self: Any, address: int, like: Any) -> Any:
    assert self is addresses.pointer, f"{self} has no Python"
    at = int(address) or ctypes.addressof(NOTHING)  # of no length: ctypes takes no null for that
    return ctypes.cast(at, ctypes.POINTER(np.ctypeslib.as_ctypes_type(like.dtype)))
