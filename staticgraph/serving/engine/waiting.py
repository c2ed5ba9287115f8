"""The queue of waiting graphs, and the choice of the next batch.

The problem: single graphs arrive at any time, and a recorded step costs the same for one graph as
for a full bucket. The idea: each time, all waiting graphs are packed as a stream, in order of
arrival (:mod:`staticgraph.packing.stream`); a pack is ready once a graph no longer fitted into it,
or once its oldest graph has waited long enough. Buckets that differ only in their capacity, and not
in the size of the largest graph, form one line: graphs are packed by the limits of the largest
bucket, and a pack runs in the smallest bucket that holds it.

The invariant: every graph that was added is taken exactly once, no bucket is exceeded, and a graph
that has waited its time goes before any later one, so none starves.

Pure: no thread, no clock, no lock. The caller passes the time as a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from staticgraph.packing.placement import group_by_pack, homes, limits_array, place_batches
from staticgraph.packing.stream import stream_kernel
from staticgraph.serving.engine.request import Piece, Request, requests_of
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray

# The number of open packs, as in a loader that packs.
WINDOW = 8
# The most waiting graphs considered: far more than a batch holds, packed in well under 1 ms.
LOOK_AT = 8192


class TakenBatch(NamedTuple):
    """The graphs of the next batch in order of arrival, and its bucket."""

    pieces: list[Piece]
    bucket: int


class Waiting:
    """The queue of waiting graphs.

    Args:
        capacities: the buckets, ascending.
        components: the number of columns of a size.
        max_wait_s: how long a graph waits for others, in seconds.
    """

    def __init__(self, capacities: Sequence[Capacity], components: int, max_wait_s: float) -> None:
        self._capacities = tuple(capacities)
        self._limits = limits_array(capacities)
        self._max_wait_s = max_wait_s
        self._largest = _largest_of_lines(self._limits)
        self._pieces: list[Piece] = []
        self._sizes = np.empty((0, components), np.int64)

    def __len__(self) -> int:
        return len(self._pieces)

    def unfit(self, sizes: IntArray) -> IntArray:
        """The positions of the graphs, given their sizes ``[n, C]``, that fit no bucket."""
        return np.flatnonzero(self._lines(sizes) < 0)

    def _lines(self, sizes: IntArray) -> IntArray:
        return homes(sizes, [self._capacities[bucket] for bucket in self._largest])

    def add(self, *requests: Request) -> None:
        """Adds the graphs of requests; each graph must fit a bucket."""
        sizes = np.concatenate([self._sizes, *(each.graphs.sizes for each in requests)])
        self._sizes = sizes  # nothing below fails, so both stay consistent
        self._pieces += [Piece(each, graph) for each in requests for graph in range(len(each))]

    def due(self) -> float | None:
        """The time when the oldest graph has waited long enough; None if none waits."""
        return self._pieces[0].request.arrived + self._max_wait_s if self._pieces else None

    def take(self, now: float, everything: bool = False) -> TakenBatch | None:
        """Removes and returns the graphs of the next batch; None if none need to run yet.

        Args:
            now: the current time, in seconds, by the clock of the arrivals.
            everything: do not wait for more graphs.
        """
        self._drop_those_over()
        due = self.due()
        if due is None:
            return None
        chosen = self._chosen(everything or now >= due)
        if chosen is None:
            return None
        bucket, ids = chosen
        batch = TakenBatch([self._pieces[place] for place in ids], bucket)
        self._keep(np.setdiff1d(np.arange(len(self._pieces)), ids, assume_unique=True))
        return batch

    def clear(self) -> list[Request]:
        """Removes all graphs, and returns their requests."""
        requests = requests_of(self._pieces)
        self._keep(np.empty(0, np.int64))
        return requests

    def warm(self) -> None:
        """Compiles the loops that :meth:`take` runs."""
        before = self._sizes
        self._sizes = np.zeros((1, before.shape[1]), np.int64)
        self._chosen(due=True)
        self._sizes = before

    def _drop_those_over(self) -> None:
        """Removes graphs of requests that failed with another batch, or were cancelled."""
        over = [piece.request.over or piece.request.future.cancelled() for piece in self._pieces]
        if any(over):
            for piece, gone in zip(self._pieces, over, strict=True):
                if gone:
                    piece.request.begin()  # notifies the waiters of the future
            self._keep(np.flatnonzero(~np.array(over)))

    def _keep(self, places: IntArray) -> None:
        self._pieces = [self._pieces[place] for place in places]
        self._sizes = self._sizes[places]

    def _chosen(self, due: bool) -> tuple[int, IntArray] | None:
        """The bucket and the positions of the ready pack with the oldest graph; if the oldest graph
        of all is due, its pack, ready or not."""
        sizes = self._sizes[:LOOK_AT]
        line = self._lines(sizes)
        for number in dict.fromkeys(line.tolist()):  # the oldest graph's line first
            largest = self._largest[number]
            capacity = self._capacities[largest]
            members = np.flatnonzero(line == number)
            packs, failed = stream_kernel(
                sizes,
                members,
                np.array(capacity.size_limits, np.int64),
                capacity.graph_limit,
                min(WINDOW, len(members)),
            )
            assert failed < 0, "what fits no bucket was refused"
            grouped, bounds = group_by_pack(packs, int(packs.max()) + 1)
            first = members[grouped[: bounds[1]]]  # the pack that was opened first
            if due or len(bounds) > 2 or len(first) == capacity.graph_limit:
                return self._placed(first, largest)
        return None

    def _placed(self, ids: IntArray, largest: int) -> tuple[int, IntArray]:
        """The smallest bucket that holds a pack, and its graphs."""
        allowed = self._limits.copy()
        allowed[self._limits[:, 3] > self._limits[largest, 3]] = -1
        bounds = np.array([0, len(ids)])
        bucket = int(place_batches(self._sizes, ids, bounds, allowed)[0])
        return bucket, ids


def _largest_of_lines(limits: IntArray) -> list[int]:
    """The largest bucket of each line: a line has buckets for the same size of the largest graph,
    each with at least the capacity of the one before in every component."""
    largest: list[int] = []
    for bucket in sorted(range(len(limits)), key=lambda k: (limits[k, 3], k)):
        last = limits[largest[-1]] if largest else None
        if last is not None and last[3] == limits[bucket, 3] and (last <= limits[bucket]).all():
            largest[-1] = bucket
        else:
            largest.append(bucket)
    return largest
