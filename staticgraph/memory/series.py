"""Moments of a step that goes through blocks one after another, each fitted separately.

The live memory outside of loops is a sum of counts of the capacity; the live memory in an iteration
is a sum of counts of the blocks before it, of its own block, and of those after it, the same sum in
every iteration. So each moment of a loop has as many equations as all readings have blocks, and is
determined by few readings. Pure numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import FitRefused
from staticgraph.memory.counts import IN_TURN, TURNS
from staticgraph.memory.least_squares import FloatArray, non_negative
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many

# Maps a capacity to ``[blocks, terms]`` float64: its counts in each block's turn.
CountsAt = Callable[[Capacity], FloatArray]


class Moments(NamedTuple):
    """Bytes after every operation of a step that goes through blocks.

    Attributes:
        outside: ``[operations]`` float64, for operations outside of loops.
        loops: per loop and block, ``[operations]`` float64.
    """

    outside: FloatArray
    loops: tuple[tuple[FloatArray, ...], ...]


def planes_of(
    moments: Sequence[Moments],
    capacities: Sequence[Capacity],
    peaks: FloatArray,
    terms: Sequence[str],
    counts_at: CountsAt,
    drawn: Sequence[Capacity],
) -> FloatArray:
    """``[planes, terms]`` the bytes per count of each moment that is the peak somewhere.

    Args:
        moments: of each reading.
        capacities: of each reading.
        peaks: ``[readings]`` peak bytes of each.
        terms: of the form.
        counts_at: returns a capacity's counts in the order of ``terms``.
        drawn: capacities at which to look for the moments that are the peak.

    Raises:
        FitRefused: the loops do not have one iteration per block, or too few of them separate the
            terms.
    """
    counts = [counts_at(capacity) for capacity in capacities]
    loops = list(zip(*(step.loops for step in moments), strict=True))  # per loop, by reading
    blocks = [len(rows) for rows in counts]
    if any([len(seen) for seen in loop] != blocks for loop in loops):
        raise FitRefused("the steps have other iterations than the layout has blocks")
    once = np.array([term not in TURNS for term in terms])
    turns = np.array([term not in (*IN_TURN, "block") for term in terms])
    firsts = np.stack([rows[0] for rows in counts])
    every = np.concatenate(counts)
    of_every = np.repeat(peaks, [len(rows) for rows in counts])
    groups = [_Group(once, firsts, peaks, np.stack([step.outside for step in moments]))]
    for loop in loops:
        values = np.stack([iteration for reading in loop for iteration in reading])
        groups.append(_Group(turns, every, of_every, values))
    sampled = [counts_at(capacity) for capacity in drawn]
    starts = np.cumsum([0, *(len(rows) for rows in sampled)])[:-1]
    rows = np.concatenate(sampled)
    tops = [np.maximum.reduceat(rows @ group.free(), starts, axis=0) for group in groups]
    which = np.argmax(np.concatenate(tops, axis=1), axis=1)
    owners = np.repeat(np.arange(len(groups)), [top.shape[1] for top in tops])
    columns = np.concatenate([np.arange(top.shape[1]) for top in tops])
    on_top = np.unique(which).tolist()
    planes = [groups[int(owners[k])].plane(int(columns[k])) for k in on_top]
    return np.unique(planes, axis=0)


class _Group:
    """Moments that share the same equations.

    Args:
        used: ``[terms]`` bool, the terms of their sums.
        counts: ``[equations, terms]``.
        peaks: ``[equations]``, the peak of each equation's reading.
        values: ``[equations, moments]`` bytes.
    """

    def __init__(
        self, used: NDArray[np.bool_], counts: FloatArray, peaks: FloatArray, values: FloatArray
    ) -> None:
        self._used, self._peaks = used, peaks
        self._columns = counts[:, used] / peaks[:, None]
        self._values = np.unique(values, axis=1)
        most = np.abs(self._columns).max(axis=0)
        if len(counts) < used.sum() or not most.all():
            raise FitRefused(
                f"{how_many(len(counts), 'equation')} for {how_many(used.sum(), 'unknown')} of a "
                "loop"
            )
        if np.linalg.matrix_rank(self._columns / most, tol=1e-6) < used.sum():
            raise FitRefused("the readings do not tell the blocks of a loop apart")

    def free(self) -> FloatArray:
        """``[terms, moments]`` the coefficients of the sums, of either sign."""
        found = np.zeros((len(self._used), self._values.shape[1]))
        targets = self._values / self._peaks[:, None]
        found[self._used], *_ = np.linalg.lstsq(self._columns, targets, rcond=None)
        return found

    def plane(self, moment: int) -> FloatArray:
        """``[terms]`` the coefficients of one moment's sum, none negative."""
        found = np.zeros(len(self._used))
        target = self._values[:, moment] / self._peaks
        found[self._used] = non_negative(self._columns, target)
        return found
