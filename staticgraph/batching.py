"""Which graphs go together in an epoch, in which order, on which rank, and from where to resume.

The problem: shuffling, exact batch sizes, packing, several buckets, several ranks and resuming in
the middle of an epoch must agree, or a graph is trained on twice and another never. The idea: one
batcher answers for all of them, and an epoch is a pure function of how it was built and of the
epoch's number; a position is then just a count of steps. The invariants: every graph of
``indices`` that fits a bucket is in exactly one batch of the epoch, on one rank; every batch fits
its bucket; all ranks take as many steps, in the same bucket at the same step; the same seed gives
the same batches.

It deals in positions of graphs in a store. It reads no features and makes no tensors.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.buckets import BucketPlan, sizes_of
from staticgraph.errors import GraphTooLarge
from staticgraph.packing.exact import exact_bounds, repair
from staticgraph.packing.random import shuffle as shuffle_in_place
from staticgraph.packing.random import stream_of
from staticgraph.packing.stream import stream_kernel
from staticgraph.sizes import Capacity, IntArray

Oversize = Literal["error", "skip", "bucket"]


class BatchIds(NamedTuple):
    """One batch: the bucket's number and the positions of its graphs, ``[g]`` int64.

    An empty batch is all padding: a step that a rank takes only because another rank takes one.
    """

    bucket: int
    ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EpochStats:
    """What happened to the batches of one epoch, over all ranks.

    Attributes:
        graphs: graphs in the epoch.
        batches: batches with at least one graph.
        skipped: graphs left out because they fit no bucket (``oversize="skip"``).
        overflowed: exact batches that were over the main bucket as they were drawn.
        rebalanced: of those, how many came within it by swapping graphs.
        spilled: how many went to another bucket than the main one because it was too small.
        split: how many were split because no bucket held them.
        empty: all-padding batches added so that all ranks take as many steps.
    """

    graphs: int = 0
    batches: int = 0
    skipped: int = 0
    overflowed: int = 0
    rebalanced: int = 0
    spilled: int = 0
    split: int = 0
    empty: int = 0


class Batcher:
    """The batches of every epoch.

    Args:
        sizes: ``[n, 2]`` nodes and edges of every graph of the store, or the store itself.
        plan: the buckets.
        indices: the graphs to use, positions in ``sizes``; all where None.
        exact: exactly ``plan.batch_size`` graphs in every batch but the last. Else as many as fit.
        shuffle: a new random order each epoch; else the order of ``indices`` is kept.
        seed: of the order.
        rank: which of ``world_size`` shares of the epoch this batcher gives.
        world_size: how many ranks share the epoch; each takes the same number of steps.
        min_steps: the least number of steps an epoch; all-padding batches fill it up.
        oversize: what to do with a graph that fits no bucket: raise, leave it out, or give the
            plan one more bucket that holds it (then read the plan back from :attr:`plan`).
        window: open packs where ``exact`` is false.

    Raises:
        GraphTooLarge: a graph fits no bucket and ``oversize="error"``.
        ValueError: ``exact`` without a batch size in the plan, or a number out of range.
    """

    def __init__(
        self,
        sizes: Any,
        plan: BucketPlan,
        *,
        indices: ArrayLike | None = None,
        exact: bool = True,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        min_steps: int = 0,
        oversize: Oversize = "error",
        window: int = 8,
    ) -> None:
        if exact and plan.batch_size is None:
            raise ValueError(
                "exact=True needs a plan with a batch size; this one packs freely: make it with "
                "plan_buckets(store, batch_size=...), or pass exact=False"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} must be at least 0 and below world_size={world_size}")
        if oversize not in ("error", "skip", "bucket"):
            raise ValueError(f"oversize={oversize!r}; choose 'error', 'skip' or 'bucket'")
        self.sizes = sizes_of(sizes)
        self.exact, self.shuffle, self.seed, self.window = exact, shuffle, seed, window
        self.rank, self.world_size, self.min_steps = rank, world_size, min_steps
        given = _checked_indices(indices, len(self.sizes))
        self.plan, self.indices = _settle_oversize(self.sizes, given, plan, oversize)
        self._skipped = len(given) - len(self.indices)
        self._limits = np.array(
            [
                (c.node_limit, c.edge_limit, c.graph_limit, c.max_graph_nodes)
                for c in self.plan.capacities
            ],
            dtype=np.int64,
        )
        self._main = self._main_bucket()
        self._cache: tuple[int, list[BatchIds], EpochStats] | None = None
        self.current_epoch = 0
        self.position = 0

    def epoch(self, epoch: int) -> list[BatchIds]:
        """This rank's batches of an epoch: a pure function of the construction and the number."""
        return self._epoch(epoch)[1]

    def epoch_stats(self, epoch: int) -> EpochStats:
        """What happened to the batches of an epoch, over all ranks."""
        return self._epoch(epoch)[2]

    @property
    def stats(self) -> EpochStats:
        """:meth:`epoch_stats` of the present epoch."""
        return self.epoch_stats(self.current_epoch)

    def __len__(self) -> int:
        """Steps of the present epoch."""
        return len(self.epoch(self.current_epoch))

    def __iter__(self) -> Iterator[BatchIds]:
        """The present epoch from the present position on; at its end the next epoch is present."""
        batches = self.epoch(self.current_epoch)
        while self.position < len(batches):
            self.position += 1
            yield batches[self.position - 1]
        self.current_epoch += 1
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """Where we are, and a fingerprint of how this batcher was built. Plain values."""
        return {"epoch": self.current_epoch, "position": self.position, "of": self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where :meth:`state_dict` was taken.

        Raises:
            ValueError: the batcher was built otherwise; the message says what differs.
        """
        now, then = self._fingerprint(), state["of"]
        differing = [
            f"{name} was {then.get(name)!r} and is {now.get(name)!r}"
            for name in sorted({*now, *then})
            if now.get(name) != then.get(name)
        ]
        if differing:
            raise ValueError(
                f"this state belongs to another batcher: {'; '.join(differing)}. Build it as it "
                "was, or start the epoch anew"
            )
        self.current_epoch, self.position = int(state["epoch"]), int(state["position"])

    def _fingerprint(self) -> dict[str, Any]:
        """Everything that an epoch depends on but the rank."""
        used = hashlib.sha256(self.indices.tobytes())
        used.update(np.ascontiguousarray(self.sizes[self.indices]).tobytes())
        return {
            "graphs": used.hexdigest()[:16],
            "capacities": [tuple(row) for row in self._limits.tolist()],
            "batch_size": self.plan.batch_size if self.exact else None,
            "exact": self.exact,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "window": self.window,
            "world_size": self.world_size,
            "min_steps": self.min_steps,
        }

    def _main_bucket(self) -> int:
        """The bucket that exact batches are balanced for: the first that holds the mean batch."""
        if not self.exact or not len(self.indices):
            return 0
        batch_size = self.plan.batch_size or 1
        used = self.sizes[self.indices]
        mean = used.sum(axis=0) * min(1.0, batch_size / len(used))
        needs = np.array([*mean, batch_size, used[:, 0].max()])
        holds = (self._limits >= needs).all(axis=1)
        if holds.any():
            return int(np.argmax(holds))
        largest = int(np.argmax(np.where(self._limits[:, 2] >= batch_size, self._limits[:, 0], -1)))
        capacity = self.plan.capacities[largest]
        warnings.warn(
            f"{batch_size} of these graphs have {mean[0]:.0f} nodes and {mean[1]:.0f} edges on "
            f"average, the bucket takes {capacity.node_limit} and {capacity.edge_limit}: most "
            "batches will be split in two. Make the plan with plan_buckets(store, batch_size, "
            "indices=...) of these graphs",
            stacklevel=3,
        )
        return largest

    def _epoch(self, epoch: int) -> tuple[int, list[BatchIds], EpochStats]:
        if self._cache is None or self._cache[0] != epoch:
            self._cache = (epoch, *self._make(epoch))
        return self._cache

    def _make(self, epoch: int) -> tuple[list[BatchIds], EpochStats]:
        """All batches of the epoch, then this rank's share of them."""
        key = stream_of(self.seed, epoch)
        order = self.indices.copy()
        if self.shuffle:
            shuffle_in_place(order, key)
        if self.exact:
            batches, counts = self._exact(order, key)
        else:
            batches, counts = self._packed(order), {}
        graphs, filled = len(order), len(batches)
        mine, empty = self._share(batches)
        stats = EpochStats(
            graphs=graphs, batches=filled, skipped=self._skipped, empty=empty, **counts
        )
        return mine, stats

    def _exact(self, order: IntArray, key: np.uint64) -> tuple[list[BatchIds], dict[str, int]]:
        """Batches of ``batch_size``; an overflow is re-balanced, else spilled, else split."""
        batch_size = self.plan.batch_size or 1
        bounds = exact_bounds(len(order), batch_size)
        if self.shuffle:
            nodes, edges = self._limits[self._main, :2].tolist()
            overflowed, _, left = repair(order, self.sizes, bounds, nodes, edges, key)
            buckets = self._place(order, bounds)
        else:
            buckets = self._place(order, bounds)
            overflowed = left = int(((buckets < 0) | (buckets > self._main)).sum())
        batches: list[BatchIds] = []
        spilled = split = 0
        for bucket, start, stop in zip(
            buckets.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True
        ):
            if bucket < 0:
                split += 1
                batches.extend(self._split(order[start:stop]))
            else:
                spilled += bucket > self._main
                batches.append(BatchIds(bucket, order[start:stop]))
        return batches, {
            "overflowed": overflowed,
            "rebalanced": overflowed - left,
            "spilled": spilled,
            "split": split,
        }

    def _split(self, ids: IntArray) -> list[BatchIds]:
        """Halves until each fits; a single graph always does."""
        half = (len(ids) + 1) // 2
        parts: list[BatchIds] = []
        for part in (ids[:half], ids[half:]):
            bucket = int(self._place(part, np.array([0, len(part)]))[0])
            parts.extend([BatchIds(bucket, part)] if bucket >= 0 else self._split(part))
        return parts

    def _packed(self, order: IntArray) -> list[BatchIds]:
        """As many graphs as fit, by a stream for each bucket over the graphs that call it home."""
        homes = self._homes(order)
        found: list[tuple[int, BatchIds]] = []
        for home, capacity in enumerate(self.plan.capacities):
            positions = np.flatnonzero(homes == home)
            if not len(positions):
                continue
            arrivals = order[positions]
            limits = np.array([capacity.node_limit, capacity.edge_limit], dtype=np.int64)
            packs, _ = stream_kernel(
                self.sizes,
                arrivals,
                limits,
                capacity.graph_limit,
                min(self.window, len(arrivals)),
            )
            grouped, bounds = group_by_pack(packs, int(packs.max()) + 1)
            members = arrivals[grouped]
            buckets = self._place(members, bounds).tolist()
            firsts = positions[grouped[bounds[:-1]]].tolist()
            starts, stops = bounds[:-1].tolist(), bounds[1:].tolist()
            found.extend(
                (first, BatchIds(bucket, members[start:stop]))
                for first, bucket, start, stop in zip(firsts, buckets, starts, stops, strict=True)
            )
        found.sort(key=lambda item: item[0])
        return [batch for _, batch in found]

    def _homes(self, order: IntArray) -> IntArray:
        """The first bucket that holds each graph alone."""
        used = self.sizes[order]
        homes = np.full(len(order), -1, dtype=np.int64)
        for number in range(len(self._limits) - 1, -1, -1):
            homes[_fits_alone(used, self.plan.capacities[number])] = number
        return homes

    def _place(self, order: IntArray, bounds: IntArray) -> IntArray:
        """The first bucket that holds each batch ``order[bounds[b]:bounds[b + 1]]``, or -1."""
        return place_batches(self.sizes, order, bounds, self._limits)

    def _share(self, batches: list[BatchIds]) -> tuple[list[BatchIds], int]:
        """This rank's batches: at each step all ranks have the same bucket."""
        nothing = np.empty(0, dtype=np.int64)
        steps: list[list[BatchIds]] = []
        waiting: dict[int, list[BatchIds]] = {}
        for batch in batches:
            group = waiting.setdefault(batch.bucket, [])
            group.append(batch)
            if len(group) == self.world_size:
                steps.append(waiting.pop(batch.bucket))
        steps.extend(waiting.values())
        missing = sum(self.world_size - len(step) for step in steps)
        while len(steps) < self.min_steps:
            steps.append([BatchIds(0, nothing)])
            missing += self.world_size
        mine = [
            step[self.rank] if self.rank < len(step) else BatchIds(step[0].bucket, nothing)
            for step in steps
        ]
        return mine, missing


def _checked_indices(indices: ArrayLike | None, total: int) -> IntArray:
    """``[m]`` int64 positions, within the store."""
    if indices is None:
        return np.arange(total, dtype=np.int64)
    given = np.asarray(indices)
    if given.dtype == bool:
        if given.shape != (total,):
            raise ValueError(f"a mask of shape {given.shape} for {total} graphs")
        given = np.flatnonzero(given)
    given = np.array(given, dtype=np.int64).reshape(-1)
    bad = np.flatnonzero((given < 0) | (given >= total))
    if len(bad):
        raise IndexError(
            f"indices[{bad[0]}] is {given[bad[0]]}, but the store has graphs 0 to {total - 1}"
        )
    return given


def _fits_alone(sizes: IntArray, capacity: Capacity) -> NDArray[np.bool_]:
    """``[n]`` whether each graph fits the capacity by itself."""
    most = min(capacity.node_limit, capacity.max_graph_nodes)
    return (sizes[:, 0] <= most) & (sizes[:, 1] <= capacity.edge_limit)


def _settle_oversize(
    sizes: IntArray, indices: IntArray, plan: BucketPlan, oversize: Oversize
) -> tuple[BucketPlan, IntArray]:
    """The plan and the graphs after those that fit no bucket were dealt with."""
    used = sizes[indices]
    fits = np.zeros(len(indices), dtype=bool)
    for capacity in plan.capacities:
        fits |= _fits_alone(used, capacity)
    if fits.all():
        return plan, indices
    if oversize == "skip":
        return plan, indices[fits]
    if oversize == "bucket":
        return plan.with_bucket_for(used[~fits]), indices
    worst = int(indices[~fits][0])
    raise GraphTooLarge(_too_large(worst, sizes[worst], plan.capacities))


def _too_large(graph: int, size: IntArray, capacities: Sequence[Capacity]) -> str:
    """The message that names the graph, the component that does not fit, and the remedy."""
    last = capacities[-1]
    most = min(last.node_limit, last.max_graph_nodes)
    name, has, holds = (
        ("nodes", size[0], most) if size[0] > most else ("edges", size[1], last.edge_limit)
    )
    return (
        f"graph {graph} has {has} {name}; the largest bucket holds {holds}: raise max_{name}, "
        "or pass oversize='skip' to leave it out or oversize='bucket' to give it a bucket of "
        "its own"
    )


@numba.njit(nogil=True, cache=True)
def group_by_pack(packs: IntArray, num_packs: int) -> tuple[IntArray, IntArray]:
    """Positions grouped by pack, each group in its own order, and the ``[P + 1]`` group bounds."""
    bounds = np.zeros(num_packs + 1, np.int64)
    for pack in packs:
        bounds[pack + 1] += 1
    for p in range(num_packs):
        bounds[p + 1] += bounds[p]
    place = bounds[:-1].copy()
    grouped = np.empty(len(packs), np.int64)
    for k in range(len(packs)):
        grouped[place[packs[k]]] = k
        place[packs[k]] += 1
    return grouped, bounds


@numba.njit(nogil=True, cache=True)
def place_batches(sizes: IntArray, order: IntArray, bounds: IntArray, limits: IntArray) -> IntArray:
    """The first bucket that holds each batch, or -1.

    Args:
        sizes: ``[., 2]`` nodes and edges.
        order: positions in ``sizes``, batch by batch.
        bounds: ``[K + 1]`` where each batch starts and ends in ``order``.
        limits: ``[buckets, 4]`` nodes, edges, graphs and nodes of one graph that a bucket takes.
    """
    buckets = np.full(len(bounds) - 1, -1, np.int64)
    for b in range(len(buckets)):
        nodes, edges, largest = 0, 0, 0
        for k in range(bounds[b], bounds[b + 1]):
            nodes += sizes[order[k], 0]
            edges += sizes[order[k], 1]
            largest = max(largest, sizes[order[k], 0])
        graphs = bounds[b + 1] - bounds[b]
        for number in range(len(limits)):
            if (
                nodes <= limits[number, 0]
                and edges <= limits[number, 1]
                and graphs <= limits[number, 2]
                and largest <= limits[number, 3]
            ):
                buckets[b] = number
                break
    return buckets
