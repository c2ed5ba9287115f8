"""The compiled loops of a training run on a CPU, with the types that they are called with.

A list, since the types are known only where a loop is called, and that is too late: see
:mod:`staticgraph.training.compile_ahead`. Each line is a loop and its arguments in numpy's letters:
``f4[2]`` is a C-contiguous array of float32 of two dimensions, ``i8[1]A`` one that need not be
contiguous, ``r`` after it one that is read-only, ``i8`` a number. Longest to compile first.

``tests/test_compile_ahead.py`` trains every model that fused kernels are put under, and fails with
the lines to put in or take out where a run calls anything else.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numba import from_dtype, types

from staticgraph.training.compile_ahead import Loop

LOOPS = """
"""
WORD = re.compile(r"([a-z]\d+)(?:\[(\d)\](A?)(r?))?|(\d+)x([a-z]\d+)")


def type_of(word: str) -> Any:
    """numba's type of a word of a line."""
    found = WORD.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is no type of a loop's argument")
    letters, dimensions, strided, readonly, times, of = found.groups()
    if times:
        return types.UniTuple(from_dtype(np.dtype(of)), int(times))
    scalar = from_dtype(np.dtype(letters))
    if not dimensions:
        return scalar
    return types.Array(scalar, int(dimensions), "A" if strided else "C", bool(readonly))


def word_of(kind: Any) -> str:
    """The word of numba's type; the other way round of :func:`type_of`.

    Raises:
        ValueError: there is no word for it.
    """
    if isinstance(kind, types.UniTuple):
        return f"{kind.count}x{word_of(kind.dtype)}"
    if isinstance(kind, types.Array) and kind.layout in "AC" and kind.aligned:
        strided, readonly = "A" * (kind.layout == "A"), "r" * (not kind.mutable)
        return f"{word_of(kind.dtype)}[{kind.ndim}]{strided}{readonly}"
    if isinstance(kind, types.Boolean):
        return "b1"
    if isinstance(kind, types.Integer | types.Float):
        sign = "f" if isinstance(kind, types.Float) else "i" if kind.signed else "u"
        return f"{sign}{kind.bitwidth // 8}"
    raise ValueError(f"a loop takes a {kind}, for which there is no word")


def line_of(loop: Loop) -> str:
    """The line of a loop in :data:`LOOPS`."""
    return " ".join([loop.name.removeprefix("staticgraph."), *map(word_of, loop.types)])


def training_loops() -> list[Loop]:
    """Every loop of the list."""
    found = []
    for line in LOOPS.strip().splitlines():
        name, *words = line.split()
        found.append(Loop(f"staticgraph.{name}", tuple(map(type_of, words))))
    return found
