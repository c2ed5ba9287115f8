"""Runs the numba loops as plain Python, without compiling.

A loop takes a second of processor time to compile per type and is then called once or twice; over a
graph of thirty nodes, Python runs the same source in milliseconds. With ``NUMBA_DISABLE_JIT``,
numba does not change its functions, but intrinsics have no Python code: here, the pointers passed
to CPU kernels are those of ctypes, and operations on vector lanes use NumPy. Division by zero also
gives no warning, as in compiled code.
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
    """Installs this in the current process, which must run with ``NUMBA_DISABLE_JIT=1``."""
    assert os.environ.get("NUMBA_DISABLE_JIT") == "1"
    _Intrinsic.__call__ = _call
    np.seterr(all="ignore")


def _call(self: Any, *given: Any) -> Any:
    body = getattr(self._defn, "body", None)
    if body is not None:  # work for threads: this thread does all of it
        return body(0, 1, *given[1])
    assert self in PYTHON, f"{self} has no Python"
    return PYTHON[self](*given)


def _pointer(address: int, like: Any) -> Any:
    at = int(address) or ctypes.addressof(NOTHING)  # an empty array; ctypes does not accept null
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
