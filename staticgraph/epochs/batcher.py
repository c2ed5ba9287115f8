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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.epochs.strategies import (
    Made,
    OfflineParts,
    exact_epoch,
    offline_epoch,
    pack_offline,
    streamed_epoch,
)
from staticgraph.errors import GraphTooLarge
from staticgraph.packing.exchange import exchange_graphs
from staticgraph.packing.place import fits_alone, limits_array
from staticgraph.packing.random import shuffle as shuffle_in_place
from staticgraph.packing.random import stream_of
from staticgraph.plans.order_statistics import keep_order_statistics
from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.sizes.capacity import NODES_EDGES, Capacity
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers

Oversize = Literal["error", "skip", "bucket"]
# Open packs of a stream.
WINDOW = 8


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
        spilled: how many went to another bucket than the main one because it was too small, or
            because graphs of some rank were larger than it promises.
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
        sizes: ``[n, C]`` nodes, edges and any further component of every graph of the store, or
            the store itself.
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
        window: open packs of the stream where ``exact`` is false; None packs the sizes once,
            looking at all of them, and deals the graphs to the packs anew each epoch. A plan made
            with ``effort="best"`` has these packs already, for the graphs that it was made for;
            ``auto`` is None there, and elsewhere :data:`WINDOW`.

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
        window: int | Literal["auto"] | None = "auto",
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
        self.sizes = _planned_columns(sizes_of(sizes), plan)
        self.exact, self.shuffle, self.seed = exact, shuffle, seed
        by_plan = None if plan.packings else WINDOW
        self.window: int | None = by_plan if window == "auto" else window
        self.rank, self.world_size, self.min_steps = rank, world_size, min_steps
        given = _checked_indices(indices, len(self.sizes))
        self.plan, self.indices = _settle_oversize(self.sizes, given, plan, oversize)
        self._skipped = len(given) - len(self.indices)
        self._limits = limits_array(self.plan.capacities)
        self._main = self._main_bucket()
        self._offline: list[OfflineParts] | None = None
        self._cache: tuple[int, list[list[BatchIds]], EpochStats] | None = None
        self.current_epoch = 0
        self.position = 0

    def epoch(self, epoch: int) -> list[BatchIds]:
        """This rank's batches of an epoch: a pure function of the construction and the number."""
        return [step[self.rank] for step in self._epoch(epoch)[1]]

    def rows(self, epoch: int) -> IntArray:
        """What all ranks have at each step of an epoch, known without asking them.

        Returns:
            ``[steps, world_size, 1 + C]`` int64: graphs, nodes, edges, and any further component.
        """
        steps = self._epoch(epoch)[1]
        batches = [batch.ids for step in steps for batch in step]
        counts = np.array([len(ids) for ids in batches], dtype=np.int64)
        found = np.zeros((len(batches), 1 + self.sizes.shape[1]), dtype=np.int64)
        found[:, 0] = counts
        filled = np.flatnonzero(counts)
        if len(filled):
            ids = np.concatenate([batches[i] for i in filled])
            starts = np.cumsum(counts[filled]) - counts[filled]
            found[filled, 1:] = np.add.reduceat(self.sizes[ids], starts, axis=0)
        return found.reshape(len(steps), self.world_size, -1)

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
            "capacities": [
                (*row, *capacity.order_statistics)
                for row, capacity in zip(self._limits.tolist(), self.plan.capacities, strict=True)
            ],
            "batch_size": self.plan.batch_size if self.exact else None,
            "exact": self.exact,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "window": self.window,
            "world_size": self.world_size,
            "min_steps": self.min_steps,
        }

    def _main_bucket(self) -> int:
        """The bucket that exact batches are balanced for.

        The first that holds the largest graph of at least every other batch, and the mean batch of
        the graphs that it takes; a bucket for the batches without huge graphs comes before one for
        all.
        """
        if not self.exact or not len(self.indices):
            return 0
        batch_size = self.plan.batch_size or 1
        used = self.sizes[self.indices]
        mean = used.sum(axis=0) * min(1.0, batch_size / len(used))
        for number, capacity in enumerate(self.plan.capacities):
            within = fits_alone(used, capacity)
            share = within.mean() ** batch_size
            own = used[within].sum(axis=0) * (min(len(used), batch_size) / max(1, within.sum()))
            holds_mean = bool((np.array(capacity.size_limits) >= own).all())
            if holds_mean and capacity.graph_limit >= min(batch_size, len(used)) and share >= 0.5:
                return number
        largest = int(np.argmax(np.where(self._limits[:, 2] >= batch_size, self._limits[:, 0], -1)))
        capacity = self.plan.capacities[largest]
        if mean[0] > capacity.node_limit or mean[1] > capacity.edge_limit:
            warnings.warn(
                f"{batch_size} of these graphs have {mean[0]:.0f} nodes and {mean[1]:.0f} edges "
                f"on average, the bucket takes {capacity.node_limit} and {capacity.edge_limit}: "
                "most batches will be split in two. Make the plan with plan_buckets(store, "
                "batch_size, indices=...) of these graphs",
                stacklevel=3,
            )
        return largest

    def _epoch(self, epoch: int) -> tuple[int, list[list[BatchIds]], EpochStats]:
        if self._cache is None or self._cache[0] != epoch:
            self._cache = (epoch, *self._make(epoch))
        return self._cache

    def _make(self, epoch: int) -> tuple[list[list[BatchIds]], EpochStats]:
        """All batches of the epoch, step by step, one a rank."""
        made = self._made(epoch)
        starts, stops = made.bounds[:-1].tolist(), made.bounds[1:].tolist()
        batches = [
            BatchIds(bucket, made.order[start:stop])
            for bucket, start, stop in zip(made.buckets.tolist(), starts, stops, strict=True)
        ]
        spilled, split, exchanged = made.spilled, made.split, 0
        if any(capacity.order_statistics for capacity in self.plan.capacities):
            drawn = [(batch.bucket, batch.ids) for batch in batches]
            if self.exact and self.shuffle:
                exchanged = exchange_graphs(drawn, self.sizes, self.plan.capacities)
            kept, moved, divided = keep_order_statistics(drawn, self.sizes, self.plan.capacities)
            batches = [BatchIds(bucket, ids) for bucket, ids in kept]
            spilled, split = spilled + moved, split + divided
        steps, empty = self._shared(batches)
        stats = EpochStats(
            graphs=len(self.indices),
            batches=len(batches),
            skipped=self._skipped,
            overflowed=made.overflowed + exchanged,
            rebalanced=made.rebalanced + exchanged,
            spilled=spilled,
            split=split,
            empty=empty,
        )
        return steps, stats

    def _made(self, epoch: int) -> Made:
        """The batches of the epoch as arrays, by the strategy of this batcher."""
        key = stream_of(self.seed, epoch)
        order = self.indices.copy()
        if self.shuffle:
            shuffle_in_place(order, key)
        if self.exact:
            return exact_epoch(
                order,
                self.sizes,
                self._limits,
                self._main,
                self.plan.batch_size or 1,
                key if self.shuffle else None,
            )
        if self.window is not None:
            return streamed_epoch(order, self.sizes, self.plan.capacities, self.window)
        if self._offline is None:
            self._offline = pack_offline(
                self.indices, self.sizes, self.plan.capacities, self.plan.packings
            )
        drawn = epoch if self.shuffle else 0
        return offline_epoch(self._offline, self.sizes, self.plan.capacities, self.seed, drawn)

    def _shared(self, batches: list[BatchIds]) -> tuple[list[list[BatchIds]], int]:
        """The ranks' batches at each step, all of the same bucket, and how many are empty."""
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
        for step in steps:
            step += (self.world_size - len(step)) * [BatchIds(step[0].bucket, nothing)]
        return steps, missing


def _planned_columns(sizes: IntArray, plan: BucketPlan) -> IntArray:
    """The components that the plan limits: all of them, or nodes and edges alone."""
    planned = len(plan.capacities[0].size_limits)
    if planned == len(NODES_EDGES):
        return np.ascontiguousarray(sizes[:, :planned])
    if sizes.shape[1] != planned or any(len(c.size_limits) != planned for c in plan.capacities):
        raise ValueError(
            f"the graphs have {sizes.shape[1]} components, the plan {plan.capacities[0]} limits "
            f"{planned}: make the plan with plan_buckets(store, ...) of the same data"
        )
    return sizes


def _checked_indices(indices: ArrayLike | None, total: int) -> IntArray:
    """``[m]`` int64 positions, within the store."""
    if indices is None:
        return np.arange(total, dtype=np.int64)
    given = np.asarray(indices)
    if given.dtype == bool:
        if given.shape != (total,):
            raise ValueError(f"a mask of shape {given.shape} for {total} graphs")
        given = np.flatnonzero(given)
    given = np.array(whole_numbers(given, "indices")).reshape(-1)
    bad = np.flatnonzero((given < 0) | (given >= total))
    if len(bad):
        raise IndexError(
            f"indices[{bad[0]}] is {given[bad[0]]}, but the store has graphs 0 to {total - 1}"
        )
    return given


def _settle_oversize(
    sizes: IntArray, indices: IntArray, plan: BucketPlan, oversize: Oversize
) -> tuple[BucketPlan, IntArray]:
    """The plan and the graphs after those that fit no bucket were dealt with."""
    used = sizes[indices]
    fits = np.zeros(len(indices), dtype=bool)
    for capacity in plan.capacities:
        fits |= fits_alone(used, capacity)
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
    names = ("nodes", "edges", *(name for name, _ in last.extra))
    limits = (most, last.edge_limit, *last.extra_limits)
    name, has, holds = next(
        (each for each in zip(names, size.tolist(), limits, strict=True) if each[1] > each[2]),
        (names[0], int(size[0]), most),
    )
    remedy = f"max_{name}" if name in NODES_EDGES else f"extra[{name!r}] of the capacity"
    return (
        f"graph {graph} has {has} {name}; the largest bucket holds {holds}: raise {remedy}, "
        "or pass oversize='skip' to leave it out or oversize='bucket' to give it a bucket of "
        "its own"
    )
