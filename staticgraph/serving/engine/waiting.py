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
from staticgraph.packing.stream import pack_stream
from staticgraph.serving.engine.request import Piece, Request, requests_of
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray

# The most waiting graphs considered: far more than a batch holds, packed in well under 1 ms.
LOOK_AT = 8192


class TakenBatch(NamedTuple):
    """The graphs of the next batch in order of arrival, and its bucket."""

    pieces: list[Piece]
    bucket: int


class Waiting:
    """The queue of waiting graphs, of sizes with so many components; the buckets ascend."""

    def __init__(self, capacities: Sequence[Capacity], components: int, max_wait_s: float) -> None:
        self._limits = limits_array(capacities)
        self._max_wait_s = max_wait_s
        self._lines = _largest_of_lines(capacities, self._limits)
        self._pieces: list[Piece] = []
        self._sizes = np.zeros((1, components), np.int64)
        self._added: list[IntArray] = []  # sizes that belong at their end
        self._chosen(due=True)  # compiles the loops
        self.clear()

    def __len__(self) -> int:
        return len(self._pieces)

    def unfit(self, sizes: IntArray) -> list[int]:
        """The positions of the graphs, given their sizes ``[n, C]``, that fit no bucket."""
        return np.flatnonzero(homes(sizes, self._lines) < 0).tolist()

    def add(self, request: Request) -> None:
        """Adds the graphs of a request; each graph must fit a bucket."""
        pieces, sizes = [Piece(request, graph) for graph in request.graphs], request.sizes
        self._added.append(sizes)  # nothing fails from here, so both stay consistent
        self._pieces += pieces

    def due(self) -> float | None:
        """The time when the oldest graph has waited long enough; None if none waits."""
        return self._pieces[0].request.arrived + self._max_wait_s if self._pieces else None

    def take(self, now: float, everything: bool = False) -> TakenBatch | None:
        """Removes and returns the graphs of the next batch; None if none need to run yet, unless
        ``everything`` must run without waiting. ``now`` is in seconds, by the arrivals' clock."""
        self._sizes, self._added = np.concatenate([self._sizes, *self._added]), []
        self._drop_those_over()
        due = self.due()
        chosen = None if due is None else self._chosen(everything or now >= due)
        if chosen is None:
            return None
        bucket, ids = chosen
        batch = TakenBatch([self._pieces[place] for place in ids], bucket)
        self._keep(np.setdiff1d(np.arange(len(self)), ids, assume_unique=True))
        return batch

    def clear(self) -> list[Request]:
        """Removes all graphs, and returns their requests."""
        requests = requests_of(self._pieces)
        self._pieces, self._sizes, self._added = [], self._sizes[:0], []
        return requests

    def _drop_those_over(self) -> None:
        """Removes graphs of requests that failed with another batch, or were cancelled."""
        over = [piece.request.over or piece.request.future.cancelled() for piece in self._pieces]
        if any(over):
            for place in np.flatnonzero(over):
                self._pieces[place].request.begin()  # notifies the waiters of the future
            self._keep(np.flatnonzero(~np.array(over)))

    def _keep(self, places: IntArray) -> None:
        self._pieces = [self._pieces[place] for place in places]
        self._sizes = self._sizes[places]

    def _chosen(self, due: bool) -> tuple[int, IntArray] | None:
        """The bucket and the positions of the ready pack with the oldest graph; if the oldest graph
        of all is due, its pack, ready or not."""
        sizes = self._sizes[:LOOK_AT]
        lines = homes(sizes, self._lines)
        for line in dict.fromkeys(lines.tolist()):  # the oldest graph's line first
            capacity, members = self._lines[line], np.flatnonzero(lines == line)
            limits, most = capacity.size_limits, capacity.graph_limit
            packs = pack_stream(sizes, limits, max_graphs=most, order=members)
            grouped, bounds = group_by_pack(packs, int(packs.max()) + 1)
            first = members[grouped[: bounds[1]]]  # the pack that was opened first
            if due or len(bounds) > 2 or len(first) == most:
                allowed = self._limits.copy()  # of the line: not for larger graphs
                allowed[self._limits[:, 3] > capacity.max_graph_nodes] = -1
                bucket = place_batches(sizes, first, bounds[:2], allowed)[0]
                return int(bucket), first
        return None


def _largest_of_lines(capacities: Sequence[Capacity], limits: IntArray) -> list[Capacity]:
    """The largest bucket of each line: a line has buckets for the same size of the largest graph,
    each with at least the capacity of the one before in every component."""
    largest: list[int] = []
    for bucket in np.argsort(limits[:, 3], kind="stable").tolist():
        last = limits[largest[-1]] if largest else limits[bucket] + 1
        if last[3] == limits[bucket, 3] and (last <= limits[bucket]).all():
            largest.pop()
        largest.append(bucket)
    return [capacities[bucket] for bucket in largest]
