"""The loops of numba as the Python that they are: nothing is compiled.

A loop takes a second of processor time to compile for each type, and is then called once or twice:
over a graph of thirty nodes Python is through with it in milliseconds, by the same source. With
``NUMBA_DISABLE_JIT`` numba leaves its functions as they are, but has no Python for what is written
in instructions: the pointers that CPU kernels are given are ctypes' here, and what runs by the
vector unit's lanes is NumPy's. Beyond that, a division by zero is as quiet as it is when it is
compiled.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numba.core.extending import _Intrinsic

from staticgraph.kernels import addresses, lanes, tiles

NOTHING = ctypes.c_byte()


def begin() -> None:
    """From now on, in this process, which was started with ``NUMBA_DISABLE_JIT=1``."""
    assert os.environ.get("NUMBA_DISABLE_JIT") == "1"
    _Intrinsic.__call__ = _call
    np.seterr(all="ignore")


def _call(self: Any, *given: Any) -> Any:
    body = getattr(self._defn, "body", None)
    if body is not None:  # what is given to threads: all of it is this one's
        return body(0, 1, *given[1])
    assert self in PYTHON, f"{self} has no Python"
    return PYTHON[self](*given)


def _pointer(address: int, like: Any) -> Any:
    at = int(address) or ctypes.addressof(NOTHING)  # of no length: ctypes takes no null for that
    return ctypes.cast(at, ctypes.POINTER(np.ctypeslib.as_ctypes_type(like.dtype)))


def _total(values: Any, first: int, count: int) -> Any:
    return values[first : first + count].sum()


def _largest(values: Any, first: int, count: int) -> Any:
    return values[first : first + count].max()


def _dot(left: Any, i: int, right: Any, j: int, count: int) -> Any:
    return (left[i : i + count] * right[j : j + count]).sum()


def _combine(
    weights: Any,
    at: int,
    step: int,
    matrix: Any,
    first: int,
    stride: int,
    count: int,
    out: Any,
    place: int,
    columns: int,
    start: Any,
    origin: int,
) -> None:
    sums = start[origin : origin + columns].copy()
    for k in range(count):
        row = first + k * stride
        sums += weights[at + k * step] * matrix[row : row + columns]
    out[place : place + columns] = sums


def _tile(columns: int) -> Any:
    def tile(
        left: Any,
        at: int,
        step: int,
        gap: int,
        right: Any,
        first: int,
        stride: int,
        count: int,
        out: Any,
        place: int,
        pitch: int,
        adds: bool,
    ) -> None:
        for r in range(tiles.ROWS):
            to = place + r * pitch
            start = out if adds else np.zeros(columns, out.dtype)
            origin, row = to if adds else 0, at + r * gap
            _combine(left, row, step, right, first, stride, count, out, to, columns, start, origin)

    return tile


PYTHON = {
    tiles.tile: _tile(lanes.LANES),
    tiles.wide_tile: _tile(tiles.WIDE),
    addresses.pointer: _pointer,
    lanes.total: _total,
    lanes.largest: _largest,
    lanes.dot: _dot,
    lanes.combine: _combine,
}
