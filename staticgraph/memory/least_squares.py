"""Least squares without negative coefficients.

Bytes are never negative, so neither are the bytes per node or edge of a batch. The optimum is the
plain least squares solution over some subset of the columns: a few columns have so few subsets that
all are tried, which avoids any question of convergence; for many columns, Lawson and Hanson's
active set method is used. Pure numbers.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Up to this many columns all subsets are tried; the forms without axes have no more.
FEW_COLUMNS = 6


def non_negative(columns: FloatArray, target: FloatArray) -> FloatArray:
    """Coefficients ``[C]`` of ``columns`` ``[n, C]`` that best explain ``target`` ``[n]``."""
    norms = np.linalg.norm(columns, axis=0)
    scaled = columns / norms
    if columns.shape[1] > FEW_COLUMNS:
        return active_set(scaled, target) / norms
    best, least = np.zeros(columns.shape[1]), float(target @ target)
    for count in range(1, columns.shape[1] + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), count)):
            part, *_ = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)
            if (part < 0).any():
                continue
            miss = target - scaled[:, chosen] @ part
            if float(miss @ miss) < least * (1 - 1e-9) - 1e-18:
                least, best = float(miss @ miss), np.zeros(columns.shape[1])
                best[chosen] = part
    return best / norms


def active_set(columns: FloatArray, target: FloatArray) -> FloatArray:
    """Solves the same problem for many columns, of length 1 each.

    Source: Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23. Columns enter
    one by one, the one that most reduces the error first; where the least squares solution over the
    entered columns has a negative part, the solution moves towards it until the first part is zero,
    and that column leaves. The error decreases in every round, so no set occurs twice.
    """
    count = columns.shape[1]
    found, inside, barred = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
    tolerance = 1e-13 * max(1.0, float(np.linalg.norm(target)))
    for _ in range(10 * count):  # a bound in case of rounding; it takes about ``count`` rounds
        slope = np.where(inside | barred, -np.inf, columns.T @ (target - columns @ found))
        entering = int(np.argmax(slope))
        if slope[entering] <= tolerance:
            break
        inside[entering] = True
        while True:
            free = np.zeros(count)
            free[inside], *_ = np.linalg.lstsq(columns[:, inside], target, rcond=None)
            negative = np.flatnonzero(inside & (free < 0))
            if not len(negative):
                break
            steps = found[negative] / (found[negative] - free[negative])
            found = found + float(steps.min()) * (free - found)
            leaving = negative[steps <= steps.min()]
            found[leaving], inside[leaving] = 0.0, False
        found = free
        # A column that rounding lets in and out again stays out until another one has entered.
        barred = barred & ~inside[entering]
        barred[entering] = not inside[entering]
    return found
