"""From a store and a plan to a stream of batches of fixed shape, on the device.

The batcher decides which graphs go together. Here they are copied into slots, by worker threads if
requested (the copy does not hold the interpreter lock), and from pinned memory to the device on a
side stream. Order, content and resume depend on the seed and the position alone, never on the
number of workers.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from typing import Any, Literal, Never

import numpy as np
import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.collation.collate import fill
from staticgraph.batches.collation.transform import Transform, apply_transform, check_transform
from staticgraph.batches.loading.from_device import IdsFeed
from staticgraph.batches.loading.loaded_graphs import LoadedGraphs, announced
from staticgraph.batches.loading.loader_options import check_options
from staticgraph.batches.slots.batch_memory import used
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import Lease, Slot, SlotLayout, SlotPool
from staticgraph.epochs.batcher import Batcher, Draw
from staticgraph.epochs.blocks import Blocks
from staticgraph.epochs.epoch import BatchIds
from staticgraph.epochs.used_graphs import Oversize
from staticgraph.errors import PlanMismatch
from staticgraph.packing.random import stream_of
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import EDGE_INDEX
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore, require_there
from staticgraph.store.random_states import kept_random_states
from staticgraph.text.numeric_options import whole_option

# The batch's ids, the slot that it was copied into, and its real counts.
Filled = tuple[BatchIds, Slot, RealCounts]
# One batch in use, one being copied, one being handed over, and one spare.
DEFAULT_SLOTS = 4
# So many graphs, spread over an epoch's, stand for the data where ranks compare theirs.
DIGEST_GRAPHS = 64


class StaticLoader:
    """Iterates over one epoch of batches; the next iteration is the next epoch.

    Args:
        store: the graphs; a store moved by ``store.to(device)`` makes its batches on the device,
            and only their ids cross the bus.
        plan: the buckets, or a plain list of capacities.
        indices: which graphs of the store; all by default.
        exact: every batch but the last has exactly ``plan.batch_size`` graphs (training); False
            packs as many as fit (evaluation). By default exact if the plan has a batch size.
        shuffle: a different order every epoch, drawn from ``seed`` and the epoch's number; with
            ``"blocks"``, for a store larger than memory, graphs stored together are read together
            (:mod:`staticgraph.epochs.blocks`).
        seed: the seed of the order.
        device: the device of the batches; if None, that of the store.
        num_workers: threads that fill slots ahead; 0 fills on demand. A store on the device needs
            none.
        slots: how many batches may be alive at once.
        pointers: batches also carry ``row_ptr``, ``col_ptr`` and ``transpose``, which the kernels
            of ``convert(model, kernels=True)`` read.
        transform: ``transform(data)``, applied to every batch before it is used: ``data`` is a PyG
            ``Data`` of the flat arrays of its real rows, with the graph of each node in
            ``data.batch``, and the transform changes its fields; the random numbers of torch, NumPy
            and Python are seeded from ``seed`` and the batch's position.
        follow_batch: fields whose ``x_batch`` and ``x_ptr`` are wanted; a batch has them anyway.
        rank, world_size: this process's share of a distributed job.
        oversize: what to do with a graph that fits no bucket: raise an ``error``, ``skip`` it, or
            add one more ``bucket`` that holds it to the plan (see :attr:`plan`).
        window, min_steps: how many packs stay open if ``exact`` is false, and the least number of
            steps per epoch, as for :class:`staticgraph.epochs.batcher.Batcher`.
        sampler: draws the graphs of every epoch (any sampler of torch), some perhaps several times;
            batches are as for ``shuffle=True``. Every epoch it draws with random states seeded from
            ``seed`` and the epoch, after ``set_epoch(epoch)`` if it has that.
        batch_sampler: draws the batches of every epoch, which are taken as they are, each in the
            smallest bucket that holds it.
        **others: not accepted; the error for an unknown option says what to write instead.

    Raises:
        PlanMismatch: the plan was made for other data.
        GraphTooLarge: a graph fits no bucket and ``oversize="error"``.
        SlotsExhausted: while iterating, when more than ``slots`` batches are kept.
        ValueError: there is no such device, or a number is out of range or no whole number.
        TypeError: ``store`` is not a store of graphs, or there is no such option; for one of
            torch's ``DataLoader`` the message says what to write in its place.
    """

    def __init__(
        self,
        store: GraphStore | DeviceStore,
        plan: BucketPlan | Sequence[Capacity | tuple[int, ...]],
        *,
        indices: Sequence[int] | np.ndarray | torch.Tensor | None = None,
        exact: bool | None = None,
        shuffle: bool | Literal["blocks"] | Blocks = False,
        seed: int = 0,
        device: str | torch.device | None = None,
        num_workers: int = 0,
        slots: int = DEFAULT_SLOTS,
        pointers: bool = False,
        transform: Transform | None = None,
        follow_batch: Sequence[str] = (),
        rank: int = 0,
        world_size: int = 1,
        oversize: Oversize = "error",
        window: int | Literal["auto"] | None = "auto",
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        min_steps: int = 0,
        **others: Never,
    ) -> None:
        check_options(others, _options())
        if not isinstance(store, GraphStore | DeviceStore):
            raise TypeError(
                f"a StaticLoader reads a GraphStore, not a {type(store).__name__}: make one of the "
                "graphs with sg.GraphStore.from_pyg(graphs)"
            )
        num_workers = whole_option("num_workers", num_workers, 0)
        slots = whole_option("slots", slots, 1)
        self.store = store
        self.device: torch.device = _device_of(store, device)
        self.num_workers: int = 0 if isinstance(store, DeviceStore) else num_workers
        checked = plan if isinstance(plan, BucketPlan) else BucketPlan.of(plan)
        _check_plan(checked, store)
        self._batcher = Batcher(
            store,
            checked,
            indices=None if indices is None else np.asarray(indices),
            exact=checked.batch_size is not None if exact is None else exact,
            shuffle=shuffle,
            seed=seed,
            rank=rank,
            world_size=world_size,
            rank_bounds=_bounds_of_ranks(store, world_size),
            min_steps=min_steps,
            oversize=oversize,
            window=window,
            draw=_draw_of(sampler, batch_sampler, seed, shuffle, indices, world_size),
        )
        self.plan: BucketPlan = self._batcher.plan  # oversize="bucket" may have added one
        self.layouts: list[SlotLayout] = [
            SlotLayout(bucket, capacity, store.schema, pointers)
            for bucket, capacity in enumerate(self.plan.capacities)
        ]
        ahead = self.num_workers + 1 if self.num_workers else 0
        on_cuda = self.device.type == "cuda" and isinstance(store, GraphStore)
        self._staging = SlotPool(self.layouts, 2 + ahead, pinned=True) if on_cuda else None
        self._pool = SlotPool(self.layouts, slots if on_cuda else slots + ahead, device=self.device)
        self._copy_stream = torch.cuda.Stream(self.device) if on_cuda else None
        moved = isinstance(store, DeviceStore)
        self._feed = IdsFeed(store, self.layouts, self._pool) if moved else None
        self._transform = check_transform(transform)
        self._check_options(follow_batch)
        self._resumed = False

    def _check_options(self, follow_batch: Sequence[str]) -> None:
        schema = self.store.schema
        unknown = [name for name in follow_batch if name not in schema and name != EDGE_INDEX]
        if unknown or (follow_batch and schema.hetero):
            raise ValueError(
                f"follow_batch={list(follow_batch)}: "
                + (
                    "nodes have types, and batch['type'].batch is there for each"
                    if schema.hetero
                    else f"no field {unknown[0]!r}; there are "
                    + ", ".join(field.name for field in schema)
                )
            )
        if self._transform is not None and (schema.hetero or self._feed is not None):
            raise ValueError(
                "transform= changes batches that the host fills, of one kind of nodes: "
                + (
                    "these have types"
                    if schema.hetero
                    else f"{self.store.name} is on {self.device}; give the loader the store "
                    "before .to(device)"
                )
            )

    @property
    def batcher(self) -> Batcher:
        """Decides which graphs go together, and counts what it had to do."""
        return self._batcher

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or the next one."""
        return self._batcher.current_epoch

    def __len__(self) -> int:
        """The number of batches of the current epoch."""
        return len(self._batcher)

    @property
    def num_graphs(self) -> int:
        """The number of graphs of an epoch, over all ranks, without those left out as oversized."""
        return len(self._batcher.indices)

    @property
    def dataset(self) -> LoadedGraphs:
        """The graphs of an epoch, as PyG's loaders have them: ``len(loader.dataset)``."""
        return LoadedGraphs(self.store, self._batcher.indices)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration start at the beginning of this epoch."""
        self._batcher.current_epoch = whole_option("epoch", epoch, 0)
        self._batcher.position = 0
        self._resumed = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's position as plain values; batches already yielded are done."""
        return self._batcher.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue after the last batch that was yielded.

        Raises:
            ValueError: the state comes from a loader over other graphs, another plan, order or
                number of ranks; the message says which.
        """
        self._batcher.load_state_dict(state)
        self._resumed = True

    @cached_property
    def _data(self) -> str:
        """A digest of the fields and some graphs; none by rank, where a host maps its own range."""
        ids = self._batcher.indices
        store = self.store.host if isinstance(self.store, DeviceStore) else self.store
        if self._batcher.world_size == 1 or store.by_rank or not len(ids):
            return ""
        ids = ids[:: max(1, len(ids) // DIGEST_GRAPHS)].astype(np.int64)
        held, places = store.held(ids, pointers=False)
        hashed = hashlib.sha256(repr(store.schema.to_dict()).encode())
        for item in store.schema:
            column = held.columns[item.name]
            for place in places.tolist():
                rows = np.ascontiguousarray(column[held.rows_of(item, place)], item.dtype)
                hashed.update(rows.tobytes())
        return hashed.hexdigest()[:16]

    def __iter__(self) -> Generator[StaticBatch, None, None]:
        used()
        if self._batcher.position and not self._resumed:  # the last iteration was abandoned
            self.set_epoch(self.epoch + 1)
        self._resumed = False
        self._pool.looked = set()
        self._pool.loader = {**self._batcher.shared(), "the loader's data": self._data}
        batches = self._batcher.batches(self.epoch)[self._batcher.position :]
        for batch in self._stream(batches):
            self._batcher.position += 1
            yield batch
            del batch
        self.set_epoch(self.epoch + 1)

    def _stream(self, batches: Sequence[BatchIds]) -> Iterator[StaticBatch]:
        if self._feed is not None:
            yield from map(self._feed.batch, batches)
            return
        assert isinstance(self.store, GraphStore)
        coming = self._announced(batches)
        filled = (
            self._fill_ahead(coming, len(batches)) if self.num_workers else self._fill_each(coming)
        )
        epoch, first = self.epoch, self._batcher.position
        with closing(filled):  # an error gives back what is filled ahead, even while it is kept
            for number, (ids, slot, real) in enumerate(filled, first):
                try:
                    if self._transform is not None:
                        draw = (self._batcher.seed, epoch, self._batcher.rank, number)
                        layout, arrays = self.layouts[ids.bucket], slot.of(ids.bucket).tensors
                        apply_transform(self._transform, layout, arrays, real, draw)
                    batch = self._hand_over(ids, slot, real)
                except BaseException:
                    self._source.take_back(slot)
                    raise
                del slot  # now only the batch holds it
                yield batch
                del batch

    def _announced(self, batches: Sequence[BatchIds]) -> Iterator[BatchIds]:
        """Yields the batches; with an order in blocks, fetches ahead what they will read."""
        batcher, blocks = self._batcher, self._batcher.blocks
        if blocks is None:
            return iter(batches)
        assert isinstance(self.store, GraphStore)
        ends = batcher.windows(self.epoch) - batcher.position
        ranks = 1 if self.store.by_rank else batcher.world_size
        return announced(batches, self.store, blocks, ends[ends > 0].tolist(), ranks)

    # ------------------------------------------------------------------ filling

    @property
    def _source(self) -> SlotPool:
        """The pool of slots that the CPU fills."""
        return self._staging or self._pool

    def _fill(self, ids: BatchIds, slot: Slot) -> RealCounts:
        if slot.released is not None:
            slot.released.synchronize()  # the copy out of this pinned slot must have finished
        assert isinstance(self.store, GraphStore)
        return fill(self.store, ids.ids, self.layouts[ids.bucket], slot.of(ids.bucket).arrays)

    def _fill_each(self, batches: Iterator[BatchIds]) -> Generator[Filled, None, None]:
        for ids in batches:
            slot = self._source.lend()
            try:
                real = self._fill(ids, slot)
            except BaseException:
                self._source.take_back(slot)
                raise
            yield ids, slot, real

    def _fill_ahead(self, waiting: Iterator[BatchIds], count: int) -> Generator[Filled, None, None]:
        pending: deque[tuple[BatchIds, Slot, Future[RealCounts]]] = deque()
        with ThreadPoolExecutor(self.num_workers, thread_name_prefix="staticgraph") as workers:
            try:
                for _ in range(count):
                    while len(pending) <= self.num_workers and (not pending or self._source.free):
                        ids = next(waiting, None)
                        if ids is None:
                            break
                        slot = self._source.lend()
                        try:
                            future = workers.submit(self._fill, ids, slot)
                        except BaseException:  # no thread could be started; the fill is queued
                            workers.shutdown(cancel_futures=True)
                            self._source.take_back(slot)
                            raise
                        pending.append((ids, slot, future))
                    ids, slot, future = pending[0]
                    real = future.result()
                    pending.popleft()
                    yield ids, slot, real
                    del slot
            finally:
                for _, slot, future in pending:
                    future.cancel()
                    self._source.take_back(slot)

    # ------------------------------------------------------------------ handing over

    def _hand_over(self, ids: BatchIds, slot: Slot, real: RealCounts) -> StaticBatch:
        assert isinstance(self.store, GraphStore)
        layout = self.layouts[ids.bucket]
        objects = self.store.objects_of(ids.ids)
        target = slot if self._staging is None else self._to_device(layout, slot)
        return StaticBatch(
            layout, target.of(ids.bucket).tensors, real, Lease(self._pool, target), objects
        )

    def _to_device(self, layout: SlotLayout, slot: Slot) -> Slot:
        """Makes one asynchronous copy, ordered by events on both sides."""
        assert self._staging is not None
        assert self._copy_stream is not None
        target = self._pool.lend()
        if target.released is not None:
            self._copy_stream.wait_event(target.released)
        with torch.cuda.stream(self._copy_stream):
            target.buffer[: layout.nbytes].copy_(slot.buffer[: layout.nbytes], non_blocking=True)
            slot.released = slot.released or torch.cuda.Event()
            slot.released.record(self._copy_stream)
        torch.cuda.current_stream(self.device).wait_stream(self._copy_stream)
        self._staging.take_back(slot)
        return target


def _draw_of(
    sampler: Iterable[int] | None,
    batch_sampler: Iterable[Sequence[int]] | None,
    seed: int,
    shuffle: object,
    indices: object,
    world_size: int,
) -> Draw | None:
    """Returns what a sampler draws in an epoch, as a pure function of seed and epoch.

    Raises:
        ValueError: there is something else that would choose the graphs, or their order; or the
            sampler and the loader would both take a rank's share.
    """
    source: Any = sampler if batch_sampler is None else batch_sampler
    if source is None:
        return None
    named = {"sampler": sampler, "batch_sampler": batch_sampler, "shuffle": shuffle or None}
    both = [
        f"{name}=" for name, value in {**named, "indices": indices}.items() if value is not None
    ]
    if len(both) > 1:
        raise ValueError(f"{' and '.join(both)} exclude each other: each chooses the graphs")
    owners = (source, getattr(source, "sampler", None))  # torch's BatchSampler draws from another
    if world_size > 1 and any(getattr(owner, "num_replicas", 1) > 1 for owner in owners):
        raise ValueError(
            "a DistributedSampler draws one rank's graphs, of which the loader would take a share "
            "again: leave it out, with shuffle=True; runner.loader(...) gives each rank its share"
        )

    def draw(epoch: int) -> tuple[IntArray, IntArray | None]:
        """Draws the graphs of an epoch."""
        if hasattr(source, "set_epoch"):
            source.set_epoch(epoch)
        key = int(stream_of(seed, epoch)) % 2**32
        held = [getattr(owner, "generator", None) for owner in owners]
        generators = [each for each in held if isinstance(each, torch.Generator)]
        states = [each.get_state() for each in generators]
        with kept_random_states(key):
            for each in generators:
                each.manual_seed(key)
            drawn = [*source]
        for each, state in zip(generators, states, strict=True):
            each.set_state(state)
        name, other = ("sampler", "batch_sampler")[:: 1 if batch_sampler is None else -1]
        if drawn and (np.ndim(drawn[0]) > 0) == (name == "sampler"):
            what = "lists of graphs" if name == "sampler" else "single graphs"
            raise TypeError(f"{name}= draws {what}: give it as {other}=")
        if batch_sampler is None:
            return whole_numbers(drawn, "the sampler's draws"), None
        bounds = np.cumsum([0, *map(len, drawn)], dtype=np.int64)
        order = [number for batch in drawn for number in batch]
        return whole_numbers(order, "the batch sampler's draws"), bounds

    return draw


def _options() -> set[str]:
    """Returns the names of all options of a loader, other than store and plan."""
    return {*inspect.signature(StaticLoader).parameters} - {"store", "plan", "others"}


def _device_of(store: GraphStore | DeviceStore, wanted: str | torch.device | None) -> torch.device:
    """Returns the device of the batches.

    Raises:
        ValueError: the store is on another device than the batches, or there is no such device.
    """
    if not isinstance(store, DeviceStore):
        return require_there(wanted or "cpu")
    device = torch.device(wanted or store.device)
    if device.type != store.device.type or device.index not in (None, store.device.index):
        raise ValueError(
            f"{store.name} is on {store.device} and its batches are made there; device={wanted!r} "
            "needs store.to(device), or the store on the host"
        )
    return store.device


def _bounds_of_ranks(store: GraphStore | DeviceStore, world_size: int) -> np.ndarray | None:
    """Returns where each rank's graphs begin, if each reads a range of its own; else None."""
    if isinstance(store, GraphStore) and store.by_rank and world_size > 1:
        return store.bounds_of_ranks(world_size)
    return None


def _check_plan(plan: BucketPlan, store: GraphStore | DeviceStore) -> None:
    if plan.digest is not None:
        plan.check(store.histogram)
    if plan.schema is None:
        return
    if plan.schema.keep_order is not store.schema.keep_order:
        orders = ("sorted by destination", "in the order of the data set (keep_order=True)")
        raise PlanMismatch(
            f"the edges of {store.name} are {orders[store.schema.keep_order]}, those of the plan's "
            f"data {orders[plan.schema.keep_order]}: make a plan for it with plan_buckets(store, "
            "...)"
        )
    planned = {field.layout for field in plan.schema}
    layouts = {field.layout for field in store.schema}
    if planned != layouts:
        differing = sorted({name for name, *_ in planned ^ layouts})
        raise PlanMismatch(
            f"the plan was made for data whose {', '.join(differing)} differ from those of "
            f"{store.name}: make a plan for it with plan_buckets(store, ...)"
        )
