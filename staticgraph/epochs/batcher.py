"""Which graphs form each batch of an epoch, in which order, on which rank, and where to resume.

The problem: shuffling, exact batch sizes, packing, several buckets, several ranks and resuming in
the middle of an epoch must agree, or some graphs are trained on twice and others never. The idea:
one batcher is responsible for all of them, and an epoch is a pure function of the batcher's
arguments and of the epoch's number; a position is then just a count of steps. The invariants: every
graph of ``indices`` that fits a bucket is in exactly one batch of the epoch, on one rank; every
batch fits its bucket; all ranks take the same number of steps, in the same bucket at the same step;
the same seed gives the same batches.

It works on positions of graphs in a store. It reads no features and creates no tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.epochs.blocks import ORDER_VERSION, Blocks, Order, Room, block_order
from staticgraph.epochs.epoch import BatchIds, Epoch, EpochStats, RankBatches, dealt, side_by_side
from staticgraph.epochs.strategies import (
    EpochBatches,
    OfflineParts,
    drawn_epoch,
    exact_epoch,
    offline_epoch,
    pack_offline,
    streamed_epoch,
)
from staticgraph.epochs.used_graphs import (
    Oversize,
    checked_bounds,
    checked_indices,
    histogram_of,
    main_bucket,
    narrow_sizes_of,
    pieces,
    planned_columns,
    settle_oversize,
)
from staticgraph.packing.placement import limits_array, size_limits
from staticgraph.packing.random import shuffle as shuffle_in_place
from staticgraph.packing.random import stream_of
from staticgraph.plans.packings import digest_of_packings
from staticgraph.plans.plan import BucketPlan
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.numeric_options import whole_option

# Of an epoch, the graphs that were drawn, and the bounds of batches if these were drawn.
Draw = Callable[[int], tuple[IntArray, IntArray | None]]
# Open packs of a stream, by default.
WINDOW = 8


class Batcher:
    """The batches of every epoch.

    Args:
        sizes: ``[n, C]`` nodes, edges and any further component of every graph of the store, or
            the store itself.
        plan: the buckets.
        indices: the graphs to use, as positions in ``sizes``; all where None.
        exact: exactly ``plan.batch_size`` graphs in every batch except the last. Otherwise, as many
            as fit.
        shuffle: a new random order each epoch; ``"blocks"``, or :class:`Blocks`, for one that reads
            whole blocks of the store and mixes a window of them; False keeps the order of
            ``indices``.
        seed: of the order.
        rank: which of the ``world_size`` shares of the epoch this batcher returns.
        world_size: how many ranks share the epoch; each takes the same number of steps.
        rank_bounds: ``[world_size + 1]`` positions: each rank takes only graphs from its own bound
            up to the next. By default any rank takes any graph.
        min_steps: the least number of steps per epoch; all-padding batches make up the difference.
        oversize: what to do with a graph that fits no bucket: raise, leave it out, or give the
            plan one more bucket that holds it (then read the plan back from :attr:`plan`).
        window: open packs of the stream where ``exact`` is false; None packs the sizes once,
            looking at all of them, and assigns the graphs to the packs again each epoch. A plan
            made with ``effort="best"`` already has these packs, for the graphs that it was made
            for; there ``auto`` means None, and elsewhere :data:`WINDOW`.
        draw: of an epoch's number, the graphs that a sampler drew ``[n]``, some perhaps several
            times, and, if it drew batches, their bounds ``[K + 1]``; in place of ``shuffle``.

    Raises:
        GraphTooLarge: a graph fits no bucket and ``oversize="error"``.
        ValueError: ``exact`` without a batch size in the plan, or a number that is out of range
            or no whole number.
    """

    exact: bool
    shuffle: bool
    seed: int
    rank: int
    world_size: int
    min_steps: int
    plan: BucketPlan
    indices: IntArray

    def __init__(
        self,
        sizes: Any,
        plan: BucketPlan,
        *,
        indices: ArrayLike | None = None,
        exact: bool = True,
        shuffle: bool | Literal["blocks"] | Blocks = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        rank_bounds: ArrayLike | None = None,
        min_steps: int = 0,
        oversize: Oversize = "error",
        window: int | Literal["auto"] | None = "auto",
        draw: Draw | None = None,
    ) -> None:
        if exact and plan.batch_size is None:
            raise ValueError(
                "exact=True needs a plan with a batch size; this one packs freely: make it with "
                "plan_buckets(store, batch_size=...), or pass exact=False"
            )
        seed, min_steps = whole_option("seed", seed), whole_option("min_steps", min_steps, 0)
        rank, world_size = whole_option("rank", rank), whole_option("world_size", world_size, 1)
        if window is not None and window != "auto":
            window = whole_option("window", window, 1)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} must be at least 0 and below world_size={world_size}")
        if oversize not in ("error", "skip", "bucket"):
            raise ValueError(f"oversize={oversize!r}; choose 'error', 'skip' or 'bucket'")
        self.blocks: Blocks | None = _blocks_of(shuffle)
        by_plan = None if plan.packings and self.blocks is None else WINDOW
        self.window: int | None = by_plan if window == "auto" else window
        if self.blocks is not None and not exact and self.window is None:
            raise ValueError(
                "shuffle='blocks' reads graphs that are stored together together, and window=None "
                "deals all of them again: give a window, or exact=True"
            )
        self.sizes: IntArray = planned_columns(narrow_sizes_of(sizes), plan)
        self.exact, self.shuffle, self.seed = exact, bool(shuffle) or draw is not None, seed
        self._draw = draw
        self.rank, self.world_size, self.min_steps = rank, world_size, min_steps
        self._rank_bounds = checked_bounds(rank_bounds, world_size, len(self.sizes))
        used = checked_indices(indices, len(self.sizes))
        self._used = histogram_of(self.sizes, used)
        self.plan, self.indices = settle_oversize(self.sizes, used, self._used, plan, oversize)
        if len(self.indices) < len(used):
            self._used = histogram_of(self.sizes, self.indices)
        self._skipped = len(used) - len(self.indices)
        self._limits = limits_array(self.plan.capacities)
        self._main = 0
        if exact and len(self.indices):
            self._main = main_bucket(self._used, self.plan.capacities, self.plan.batch_size or 1)
        self._bounds: IntArray | None = None
        self._offline: list[list[OfflineParts]] | None = None
        self._cache: tuple[int, Epoch, EpochStats] | None = None
        self.current_epoch: int = 0
        self.position: int = 0

    def epoch(self, epoch: int) -> list[BatchIds]:
        """This rank's batches of an epoch: a pure function of the arguments and the number."""
        return list(self.batches(epoch))

    def batches(self, epoch: int) -> RankBatches:
        """Like :meth:`epoch`, but lazily: each batch is created when it is read."""
        return self._epoch(epoch)[1].of_rank(self.rank)

    def rows(self, epoch: int) -> IntArray:
        """The rows of all ranks at each step of an epoch, computed without communication.

        Returns:
            ``[steps, world_size, 1 + C]`` int64: graphs, nodes, edges, and any further component.
        """
        return self._epoch(epoch)[1].rows(self.sizes)

    def windows(self, epoch: int) -> IntArray:
        """The steps of this rank after which the next window of blocks begins, ``[W]`` ascending.

        The last entry is the number of steps.
        """
        return self._epoch(epoch)[1].windows_of_rank(self.rank)

    def epoch_stats(self, epoch: int) -> EpochStats:
        """What happened to the batches of an epoch, over all ranks."""
        return self._epoch(epoch)[2]

    @property
    def stats(self) -> EpochStats:
        """:meth:`epoch_stats` of the current epoch."""
        return self.epoch_stats(self.current_epoch)

    def __len__(self) -> int:
        """The number of steps in the current epoch."""
        return len(self._epoch(self.current_epoch)[1])

    def __iter__(self) -> Iterator[BatchIds]:
        """Iterates over the current epoch from the current position, then advances the epoch."""
        batches = self.batches(self.current_epoch)
        while self.position < len(batches):
            self.position += 1
            yield batches[self.position - 1]
        self.current_epoch += 1
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """The current epoch and position, and a fingerprint of how this batcher was built.

        All values are plain numbers, strings and containers.
        """
        return {"epoch": self.current_epoch, "position": self.position, "of": self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from the point at which :meth:`state_dict` was called.

        Raises:
            ValueError: the batcher was built differently, and the message says how; or ``state`` is
                not such a state.
        """
        if not isinstance(state, Mapping) or not {"of", "epoch", "position"} <= state.keys():
            raise ValueError(
                f"this {type(state).__name__} is not the state of a loader: pass what "
                "loader.state_dict() returned; a checkpoint may hold it among other states"
            )
        present, then = self._fingerprint(), state["of"]
        differing = [
            f"{name} was {then.get(name)!r} and is {present.get(name)!r}"
            for name in sorted({*present, *then})
            if present.get(name) != then.get(name)
        ]
        if differing:
            raise ValueError(
                f"this state belongs to another batcher: {'; '.join(differing)}. Build it as it "
                "was, or start the epoch again"
            )
        self.current_epoch, self.position = int(state["epoch"]), int(state["position"])

    def shared(self) -> dict[str, Any]:
        """The rank, and everything that must be the same on all ranks, by names for messages.

        A batcher of one rank alone shares nothing but that.
        """
        if self.world_size == 1:
            return {"the loader's world_size": 1}
        ends = self.indices[[0, -1]].tolist() if len(self.indices) else []
        values = {
            "world_size": self.world_size,
            **self._fingerprint(),
            "graphs": f"{len(self.indices)} from {ends}, digest {self._graphs}",
            "epoch": self.current_epoch,
            "position": self.position,
            "rank": self.rank,
        }
        if self._draw is not None:
            drawn = self._epoch(self.current_epoch)[1].order.astype(np.int64)
            values["sampler's draw"] = hashlib.sha256(drawn.tobytes()).hexdigest()[:16]
        return {f"the loader's {name}": value for name, value in values.items()}

    @cached_property
    def _graphs(self) -> str:
        """A digest of the graphs' indices and sizes, which are read once."""
        used = hashlib.sha256()
        for ids in pieces(self.indices):
            used.update(ids.astype(np.int64, copy=False).tobytes())
        for ids in pieces(self.indices):
            used.update(np.ascontiguousarray(self.sizes[ids], dtype=np.int64).tobytes())
        return used.hexdigest()[:16]

    def _fingerprint(self) -> dict[str, Any]:
        """Everything that an epoch depends on, except the rank."""
        more: dict[str, Any] = {}
        if self.blocks is not None:
            more["blocks"] = (self.blocks.graphs, self.blocks.window, ORDER_VERSION)
        if self._rank_bounds is not None:
            more["rank_bounds"] = self._rank_bounds.tolist()
        if not self.exact and self.window is None and self.plan.packings:
            more["packings"] = digest_of_packings(self.plan.packings)
        return {
            **more,
            "graphs": self._graphs,
            "capacities": list(map(tuple, self._limits.tolist())),
            "batch_size": self.plan.batch_size if self.exact else None,
            "exact": self.exact,
            "shuffle": self.shuffle if self._draw is None else "sampler",
            "seed": self.seed,
            "window": self.window,
            "world_size": self.world_size,
            "min_steps": self.min_steps,
        }

    def _epoch(self, epoch: int) -> tuple[int, Epoch, EpochStats]:
        if self._cache is None or self._cache[0] != epoch:
            self._cache = None  # avoids holding two epochs of 100 million graphs at once
            self._cache = (epoch, *self._make(epoch))
        return self._cache

    def _make(self, epoch: int) -> tuple[Epoch, EpochStats]:
        """All batches of the epoch, step by step, one per rank."""
        drawn = [self._made(epoch, share) for share in range(self._shares)]
        shares = [of_share for of_share, _ in drawn]
        if self._shares == 1:
            steps, step_buckets = dealt(shares[0].buckets, self.world_size)
        else:
            steps, step_buckets = side_by_side([each.buckets for each in shares])
        if (short := self.min_steps - len(steps)) > 0:
            steps = np.concatenate([steps, np.full((short, self.world_size), -1, np.int64)])
            step_buckets = np.append(step_buckets, np.zeros(short, np.int64))
        starts = np.cumsum([0, *(len(each.order) for each in shares)])
        bounds = [each.bounds[:-1] + start for each, start in zip(shares, starts, strict=False)]
        stats = EpochStats(
            graphs=len(self.indices) if self._draw is None else sum(len(m.order) for m in shares),
            batches=sum(len(each.buckets) for each in shares),
            skipped=self._skipped,
            overflowed=sum(each.overflowed for each in shares),
            rebalanced=sum(each.rebalanced for each in shares),
            spilled=sum(each.spilled for each in shares),
            split=sum(each.split for each in shares),
            empty=int((steps < 0).sum()),
        )
        order = shares[0].order if len(shares) == 1 else np.concatenate([m.order for m in shares])
        buckets = np.concatenate([each.buckets for each in shares])
        windows = [
            share_windows[:-1] + start
            for (_, share_windows), start in zip(drawn, starts, strict=False)
        ]
        return Epoch(order, np.append(np.concatenate(bounds), starts[-1]), buckets, steps,
                     step_buckets, np.concatenate(windows)), stats  # fmt: skip

    @property
    def _shares(self) -> int:
        """The number of parts of the graphs that form batches separately."""
        return 1 if self._rank_bounds is None else self.world_size

    def _indices_of(self, share: int) -> IntArray:
        if self._rank_bounds is None:
            return self.indices
        first, last = self._rank_bounds[share : share + 2]
        return self.indices[(self.indices >= first) & (self.indices < last)]

    def _made(self, epoch: int, share: int) -> tuple[EpochBatches, IntArray]:
        """The batches of one share of the epoch as arrays, by this batcher's strategy, and the
        bounds of its windows in the order."""
        seed = int(stream_of(self.seed, share)) if share else self.seed
        key = stream_of(self.seed, epoch) if not share else stream_of(self.seed, epoch, share)
        order, windows = self._ordered(epoch, share, key)
        if self._bounds is not None:
            return drawn_epoch(order, self._bounds, self.sizes, self._limits), windows
        if self.exact:
            return exact_epoch(
                order,
                self.sizes,
                self._limits,
                self._main,
                self.plan.batch_size or 1,
                key if self.shuffle else None,
                None if self.blocks is None else windows,
            ), windows
        wide, order = self.sizes.astype(np.int64, copy=False), order.astype(np.int64, copy=False)
        if self.window is not None:
            return streamed_epoch(order, wide, self.plan.capacities, self.window), windows
        if self._offline is None:
            by_share = [self._indices_of(k).astype(np.int64) for k in range(self._shares)]
            capacities, packings = self.plan.capacities, self.plan.packings
            self._offline = [pack_offline(ids, wide, capacities, packings) for ids in by_share]
        drawn = epoch if self.shuffle else 0
        batches = offline_epoch(self._offline[share], wide, self.plan.capacities, seed, drawn)
        return batches, windows

    def _ordered(self, epoch: int, share: int, key: np.uint64) -> Order:
        """The graphs in the epoch's order, in windows of blocks; one window without blocks."""
        if self._draw is not None:
            order, self._bounds = self._draw(epoch)
            order = checked_indices(order, len(self.sizes), "the sampler's draws")
            if self._skipped and self._bounds is None:
                order = order[np.isin(order, self.indices)]
            return Order(order, np.array([0, len(order)]))
        indices = self._indices_of(share)
        if self.blocks is not None:
            return block_order(indices, self.blocks, self.seed, epoch, share, self._room)
        order = indices.copy() if indices is self.indices else indices
        if self.shuffle:
            shuffle_in_place(order, key)
        return Order(order, np.array([0, len(order)]))

    @property
    def _room(self) -> Room | None:
        """What each window should fit so that its batches do; None where packed freely."""
        if not self.exact or not len(self.indices):
            return None
        most = np.array(size_limits(self._limits[self._main])) / (self.plan.batch_size or 1)
        return Room(self.sizes, most)


def _blocks_of(shuffle: bool | str | Blocks) -> Blocks | None:
    if isinstance(shuffle, str) and shuffle != "blocks":
        raise ValueError(f"shuffle={shuffle!r}; choose True, False, 'blocks' or Blocks(...)")
    return shuffle if isinstance(shuffle, Blocks) else Blocks() if shuffle == "blocks" else None
