"""Aligning the moments of steps at several capacities where the steps differ slightly.

Usually a step runs the same operations at every capacity, and its moments match one by one. Where
it does not (an attention laid out in more blocks at one capacity than at another), operations that
occur equally often in all steps are landmarks, and only the largest moment between two landmarks
counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from staticgraph.probing.reading import Reading


def aligned(readings: Sequence[Reading]) -> list[NDArray[np.float64] | None]:
    """``[moments]`` of each reading, equally many; None for all where they cannot be matched."""
    nothing: list[NDArray[np.float64] | None] = [None] * len(readings)
    found = [(r.moments, r.operations) for r in readings]
    steps = [(m, o) for m, o in found if m is not None and o is not None]
    if len(steps) < len(readings):
        return nothing
    if all(np.array_equal(operations, steps[0][1]) for _, operations in steps):
        return [moments for moments, _ in steps]
    counts = [dict(zip(*np.unique(o, return_counts=True), strict=True)) for _, o in steps]
    common = [op for op in counts[0] if all(c.get(op) == counts[0][op] for c in counts)]
    marks = [np.isin(operations, common) for _, operations in steps]
    orders = [operations[mark] for (_, operations), mark in zip(steps, marks, strict=True)]
    if not len(orders[0]) or not all(np.array_equal(order, orders[0]) for order in orders):
        return nothing
    starts = [np.flatnonzero(mark) for mark in marks]
    if any(start[0] for start in starts):  # what comes before the first landmark
        own = all(start[0] for start in starts)  # a part of its own, where every step has one
        starts = [np.append(0, start if own else start[1:]) for start in starts]
    return [
        np.maximum.reduceat(moments, start)
        for (moments, _), start in zip(steps, starts, strict=True)
    ]
