"""Whole numbers as int64, never rounded: counts, sizes and indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]

# Totals of a histogram stay below this, so that their sums and products stay within int64.
MOST_ROWS = 2**62


def whole_numbers(values: ArrayLike, what: str, error: type[ValueError] = ValueError) -> IntArray:
    """Converts the values to int64 without rounding: 2.0 becomes 2, and 2.7 raises.

    Args:
        values: numbers of any dtype and shape.
        what: what the values are, for the message.
        error: the type to raise.

    Raises:
        ValueError: (or ``error``) a value is not a whole number of 64 bits; the message says which.
    """
    array = np.asarray(values)
    if array.dtype.kind in "iu" and array.dtype != np.uint64:
        return array.astype(np.int64, copy=False)
    if array.size == 0:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "fu":
        raise error(f"{what}: {array.dtype} are no whole numbers")
    wrong = array != np.floor(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
    wrong |= ~(np.abs(array) < 2**63)
    if wrong.any():
        at = int(wrong.reshape(-1).argmax())
        raise error(f"{what}: entry {at} is {array.reshape(-1)[at]}, which is not a whole number")
    return array.astype(np.int64)


def distinct_rows(rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Finds the distinct rows of ``[n, C]`` whole numbers.

    The result is that of ``np.unique``, a dozen times faster where the numbers are at least 0 and
    a row fits into one number.

    Returns:
        The distinct rows in lexicographic order, the index ``[n]`` of each row among them, and how
        often each occurs.
    """
    # Python integers: a float loses the 1 above 2^53.
    shape = tuple(int(most) + 1 for most in np.atleast_1d(rows.max(axis=0, initial=0)))
    if rows.ndim == 2 and len(rows) and rows.min() >= 0 and math.prod(shape) < MOST_ROWS:
        keys = np.ravel_multi_index(tuple(rows.T), shape)
        keys, member, counts = np.unique(keys, return_inverse=True, return_counts=True)
        distinct = np.stack(np.unravel_index(keys, shape), axis=1)
    else:
        distinct, member, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return distinct.astype(np.int64), member.reshape(-1), counts.astype(np.int64)


def counted_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct rows and how often each occurs, as in :func:`distinct_rows`.

    Nothing is sorted where the number of possible rows is small.
    """
    shape = tuple(int(most) + 1 for most in np.atleast_1d(rows.max(axis=0, initial=0)))
    few = math.prod(shape) <= max(1 << 16, 2 * len(rows))
    if not (few and rows.ndim == 2 and len(rows) and rows.min() >= 0):
        distinct, _, counts = distinct_rows(rows)
        return distinct, counts
    times = np.bincount(np.ravel_multi_index(tuple(rows.T), shape))
    present = np.flatnonzero(times)
    return np.stack(np.unravel_index(present, shape), axis=1).astype(np.int64), times[present]


def pointer_dtype(edges: int) -> str:
    """The dtype of pointers into ``edges`` edges, end included: int32 if it can hold them."""
    return "int32" if edges <= np.iinfo(np.int32).max else "int64"


def stacked(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Stacks columns ``[n]`` of whole numbers of at least 0 into a table ``[n, C]``.

    The dtype is the narrowest signed one that holds them; signed, so that differences stay valid.
    """
    most = max((int(column.max(initial=0)) for column in columns), default=0)
    dtype = next(d for d in (np.int16, np.int32, np.int64) if most <= np.iinfo(d).max)
    table = np.empty((len(columns[0]), len(columns)), dtype)
    for number, column in enumerate(columns):
        table[:, number] = column
    return table
