"""All batches of one epoch, in a few arrays regardless of their number.

An epoch of 100 million graphs is 800,000 batches, and one Python object per batch, with a copy of
its positions, would take more memory than the order itself. So the order is kept once, batch by
batch, and a batch is created when it is read.

Its statistics are counted from these arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from staticgraph.sizes.whole_numbers import IntArray


@dataclass(frozen=True, slots=True)
class EpochStats:
    """What happened to the batches of one epoch, over all ranks.

    Attributes:
        graphs: graphs in the epoch.
        batches: batches with at least one graph.
        skipped: graphs left out because they fit no bucket (``oversize="skip"``).
        overflowed: exact batches that exceeded the main bucket as they were drawn.
        rebalanced: of those, how many were made to fit by exchanging graphs.
        spilled: how many went to another bucket than the main one because it was too small, or
            because their k-th largest graph was larger than it promises.
        split: how many were split because no bucket held them.
        empty: all-padding batches added so that all ranks take the same number of steps.
    """

    graphs: int = 0
    batches: int = 0
    skipped: int = 0
    overflowed: int = 0
    rebalanced: int = 0
    spilled: int = 0
    split: int = 0
    empty: int = 0


# Batches whose rows are summed at once.
AT_ONCE = 1 << 13


class BatchIds(NamedTuple):
    """One batch: the bucket's number and the positions of its graphs, ``[g]`` int64.

    An empty batch is all padding: a step that a rank takes only because another rank takes one.
    """

    bucket: int
    ids: NDArray[np.int64]


class Epoch:
    """The batches of all ranks.

    Args:
        order: ``[n]`` positions in the store, batch by batch.
        bounds: ``[K + 1]`` where each batch begins and ends in ``order``.
        buckets: ``[K]`` the bucket of each batch.
        steps: ``[S, ranks]`` the batch of each rank at each step; -1 where it has none.
        step_buckets: ``[S]`` the bucket of each step.
        windows: ``[W]`` where each window begins in ``order``.
    """

    steps: IntArray
    order: IntArray

    def __init__(
        self,
        order: IntArray,
        bounds: IntArray,
        buckets: IntArray,
        steps: IntArray,
        step_buckets: IntArray,
        windows: IntArray,
    ) -> None:
        self._windows = windows
        self.order, self._bounds, self._buckets = order, bounds, buckets
        self.steps, self._step_buckets = steps, step_buckets

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int, rank: int) -> BatchIds:
        """The batch that a rank takes at a step."""
        number, bucket = int(self.steps[step, rank]), int(self._step_buckets[step])
        if number < 0:
            return BatchIds(bucket, np.empty(0, np.int64))
        ids = self.order[self._bounds[number] : self._bounds[number + 1]]
        return BatchIds(bucket, ids.astype(np.int64))

    def of_rank(self, rank: int) -> RankBatches:
        """A rank's batches, step by step."""
        return RankBatches(self, rank, range(len(self)))

    def windows_of_rank(self, rank: int) -> IntArray:
        """The steps of a rank after which the next window begins, ``[W]`` ascending.

        The last entry is the number of steps. An entry repeats for a window in which the rank has
        no batch. A batch belongs to the window in which it begins.
        """
        windows = self.steps[:, rank]
        begins = np.where(windows < 0, 0, self._bounds[windows])
        reached = np.maximum.accumulate(np.searchsorted(self._windows, begins, side="right"))
        ends = np.searchsorted(reached, np.arange(1, len(self._windows) + 1), side="right")
        return ends if len(ends) else np.array([len(windows)])

    def rows(self, sizes: IntArray) -> IntArray:
        """``[S, ranks, 1 + C]`` int64 graphs, nodes, edges and any further component of each batch.

        Args:
            sizes: ``[., C]`` sizes of the store's graphs.
        """
        of_batches = np.zeros((len(self._bounds), 1 + sizes.shape[1]), np.int64)
        of_batches[:-1, 0] = np.diff(self._bounds)
        for first in range(0, len(self._buckets), AT_ONCE):
            bounds = self._bounds[first : first + AT_ONCE + 1]
            ids = self.order[bounds[0] : bounds[-1]]
            sums = np.add.reduceat(sizes[ids], bounds[:-1] - bounds[0], axis=0, dtype=np.int64)
            of_batches[first : first + len(sums), 1:] = sums
        return of_batches[self.steps]  # index -1, no batch, selects the zeros at the end


class RankBatches(Sequence[BatchIds]):
    """The batches of a rank at some steps; each is created when it is read.

    Args:
        epoch: the epoch of the batches.
        rank: whose batches.
        steps: which steps.
    """

    def __init__(self, epoch: Epoch, rank: int, steps: range) -> None:
        self._epoch, self._rank, self._steps = epoch, rank, steps

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> BatchIds: ...

    @overload
    def __getitem__(self, index: slice) -> RankBatches: ...

    def __getitem__(self, index: int | slice) -> BatchIds | RankBatches:
        if isinstance(index, slice):
            return RankBatches(self._epoch, self._rank, self._steps[index])
        return self._epoch.batch(self._steps[index], self._rank)


def dealt(buckets: IntArray, ranks: int) -> tuple[IntArray, IntArray]:
    """Assigns batches to ranks: consecutive batches of a bucket, one per rank, share a step.

    Args:
        buckets: ``[K]`` the bucket of each batch.
        ranks: the number of ranks.

    Returns:
        ``[S, ranks]`` the batch of each rank at each step, -1 where a bucket has no more, and
        ``[S]`` the buckets. Steps are sorted by their last batch; those that are not full come at
        the end, sorted by their first.
    """
    full, late, full_buckets, late_buckets = [], [], [], []
    for bucket in np.unique(buckets):
        of_bucket = np.flatnonzero(buckets == bucket)
        whole = len(of_bucket) // ranks * ranks
        full.append(of_bucket[:whole].reshape(-1, ranks))
        full_buckets.append(np.full(whole // ranks, bucket))
        if whole < len(of_bucket):
            rest = np.full(ranks, -1, np.int64)
            rest[: len(of_bucket) - whole] = of_bucket[whole:]
            late.append(rest)
            late_buckets.append(bucket)
    nothing = np.empty((0, ranks), np.int64)
    steps = np.concatenate([nothing, *full]).astype(np.int64)
    order = np.concatenate([np.empty(0, np.int64), *full_buckets]).astype(np.int64)
    when = np.argsort(steps[:, -1], kind="stable") if len(steps) else np.empty(0, np.int64)
    behind = sorted(range(len(late)), key=lambda k: late[k][0])
    return (
        np.concatenate([steps[when], nothing, *(late[k][None] for k in behind)]).astype(np.int64),
        np.append(order[when], [late_buckets[k] for k in behind]).astype(np.int64),
    )


def side_by_side(buckets: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Builds the steps of ranks with separate batches: their k-th batches of a bucket together.

    Args:
        buckets: for each rank, ``[K_r]`` the bucket of each of its batches; batches are numbered
            consecutively, rank by rank.

    Returns:
        As for :func:`dealt`; steps are sorted by the latest relative position of their batches in
        the epochs of their ranks.
    """
    firsts = np.cumsum([0, *map(len, buckets)])
    steps, numbers, late = [], [], []
    for bucket in np.unique(np.concatenate(buckets)) if firsts[-1] else ():
        of_bucket = [np.flatnonzero(of == bucket) for of in buckets]
        table = np.full((max(map(len, of_bucket)), len(buckets)), -1, np.int64)
        when = np.full(table.shape, -1.0)
        for rank, batches in enumerate(of_bucket):
            table[: len(batches), rank] = firsts[rank] + batches
            when[: len(batches), rank] = batches / max(1, len(buckets[rank]))
        steps.append(table)
        numbers.append(np.full(len(table), bucket, np.int64))
        late.append(when.max(axis=1))
    if not steps:
        return np.empty((0, len(buckets)), np.int64), np.empty(0, np.int64)
    order = np.argsort(np.concatenate(late), kind="stable")
    return np.concatenate(steps)[order], np.concatenate(numbers)[order]
