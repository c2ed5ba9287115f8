"""Sampled mini-batches of a partitioned graph, in a few static shapes.

There are three stages with bounded queues between them: a thread reads the next state's partitions,
a thread samples and fills slots, and the caller trains. A batch owns its slot until the next batch
is requested; on a machine with CUDA the slots are pinned, so that a copy can overlap with a step.

Every seed of a task (a training node, or an edge) occurs exactly once per epoch. Random draws
depend only on (seed, epoch, state, batch), not on threads.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from staticgraph.outofcore.buffer.resident import ResidentGraph, ResidentGraphs
from staticgraph.outofcore.buffer.resident_embeddings import ResidentEmbeddings
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.neighbours import Direction
from staticgraph.outofcore.disk.node_choice import chosen_nodes, class_labels
from staticgraph.outofcore.policies.node_policy import NodePolicy
from staticgraph.outofcore.policies.policy import EdgePolicy, InMemory
from staticgraph.outofcore.policies.schedule import NodeSchedule, NodeState, Schedule
from staticgraph.outofcore.sampling.dense import DenseSample, DenseSampler
from staticgraph.outofcore.sampling.hop_profile import profile
from staticgraph.outofcore.sampling.hops import HopBatch, HopLadder, exact_capacity
from staticgraph.outofcore.sampling.link_sampling import LinkSampler
from staticgraph.outofcore.sampling.loader_options import hop_fanouts, require_of_task
from staticgraph.outofcore.sampling.running_epoch import RunningEpoch
from staticgraph.outofcore.sampling.sampled_batch import SampledBatch
from staticgraph.text.numeric_options import whole_option

# The number of states of the first epoch that a profile samples.
PROFILE_STATES = 4


class SampledLoader:
    """Iterates over sampled batches, one epoch per iteration.

    Args:
        graph: the partitioned graph, with features if the model needs them.
        policy: for nodes ``NodeCache`` or ``Dispersed``, for edges ``Beta`` or ``Comet``;
            ``InMemory`` for both.
        fanouts: neighbours per node and direction, hop by hop, at least 1 each; a fan-out of the
            largest degree takes all neighbours.
        batch_size: seed nodes per batch, or edges per batch for links.
        task: ``node`` or ``link``.
        seeds: the caller's numbers of the nodes to train on, or a mask; None for all. Nodes only.
        labels: ``[N]`` classes in the caller's order, -1 for none; nodes only.
        negatives: resident nodes drawn for each batch of edges; links only.
        degree_fraction: share of the negatives drawn as endpoints of the state's edges, so by
            degree; links only.
        exclude: remove a batch's own edges from its samples, so that the model does not see what it
            should predict; links only.
        direction: the direction of sampling.
        ladder: the static shapes; if None, they are profiled in the first epoch.
        shuffle: use the seeds in random order; otherwise in the graph's order.
        seed: the seed of all random draws.
        states: the source of the buffer's states; None for the graph's features.

    Raises:
        ValueError: for a policy or an option of the other task, labels of another length or that
            are not classes, a fan-out or batch size below 1, or a ladder of other fan-outs.
        BadGraph: if a seed is not a node of the graph.
    """

    graph: PartitionedGraph
    policy: NodePolicy | EdgePolicy
    fanouts: list[int]
    batch_size: int
    negatives: int
    degree_fraction: float
    exclude: bool
    direction: Direction
    shuffle: bool
    seed: int
    epoch: int

    def __init__(
        self,
        graph: PartitionedGraph,
        policy: NodePolicy | EdgePolicy,
        fanouts: Sequence[int],
        batch_size: int,
        task: Literal["node", "link"] = "node",
        *,
        seeds: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        negatives: int = 0,
        degree_fraction: float = 0.0,
        exclude: bool = False,
        direction: Direction = "in",
        ladder: HopLadder | None = None,
        shuffle: bool = True,
        seed: int = 0,
        states: ResidentGraphs | ResidentEmbeddings | None = None,
    ) -> None:
        if task not in ("node", "link"):
            raise ValueError(f"task={task!r}; choose 'node' or 'link'")
        require_of_task(
            task,
            {"seeds": seeds is not None, "labels": labels is not None},
            {"negatives": negatives, "degree_fraction": degree_fraction, "exclude": exclude},
        )
        classes = None if labels is None else class_labels(labels, graph.num_nodes)
        _check_policy(task, policy)
        _check_negatives(negatives, degree_fraction)
        batch_size = whole_option("batch_size", batch_size)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}; give at least 1")
        self.graph, self.policy, self.task = graph, policy, task
        self.fanouts, self.batch_size, self.negatives = hop_fanouts(fanouts), batch_size, negatives
        self.degree_fraction, self.exclude = degree_fraction, exclude
        self.ladder, self.shuffle, self.seed, self.epoch = ladder, shuffle, seed, 0
        self.waited_s: float = 0.0
        self.direction = direction
        self._shapes_of = tuple(self.fanouts), batch_size
        self._running: RunningEpoch | None = None
        self._last: SampledBatch | None = None
        self._new = np.empty(graph.num_nodes, np.int64)
        self._new[graph.node_ids] = np.arange(graph.num_nodes)
        self._seeds = np.sort(
            np.arange(graph.num_nodes)
            if seeds is None
            else self._new[np.unique(chosen_nodes(seeds, graph.num_nodes, "seeds"))]
        )
        self._labels = None if classes is None else classes[graph.node_ids]
        self.states: ResidentGraphs | ResidentEmbeddings = states or ResidentGraphs(
            graph, direction
        )
        self._pinned = torch.cuda.is_available()
        self._free: dict[int, queue.SimpleQueue[HopBatch]] = {}
        self._require_shapes()

    @property
    def classes(self) -> int:
        """One more than the largest label; 0 without labels."""
        return 0 if self._labels is None else int(self._labels.max(initial=-1)) + 1

    def schedule(self, epoch: int) -> Schedule | NodeSchedule:
        """Returns the schedule of the buffer for an epoch."""
        rng, p = np.random.default_rng([self.seed, epoch, 1]), self.graph.num_partitions
        if not isinstance(self.policy, NodePolicy):
            if self.task == "link":
                return self.policy.epoch(p, rng)
            everything = tuple(range(p))
            return NodeSchedule(p, (NodeState(everything, everything),))
        holding = np.unique(self._seeds // self.graph.partition_size).tolist()
        return self.policy.epoch(p, tuple(holding), rng)

    def __iter__(self) -> Iterator[SampledBatch]:
        """Yields the batches of one epoch.

        The hops of a batch are valid until the next batch is requested, those of the last batch
        until another epoch; reading them later raises :class:`staticgraph.errors.StaleBatch`. The
        loader has one buffer, so another iteration ends this one.

        Raises:
            RuntimeError: if another iteration of this loader has begun.
            ValueError: if the fan-outs or the batch size are no longer those of the static shapes.
        """
        schedule = self.schedule(self.epoch)
        if self.ladder is None:
            self.ladder = self._profile(schedule)
        self._require_shapes()
        if self._running is not None:
            self._running.end()
        running = self._running = RunningEpoch(
            lambda: map(self._batches, self.states.run(schedule)), self.states.mutable
        )
        self._lend(None)
        try:
            while True:
                started = time.perf_counter()
                batch = running.next()
                self.waited_s += time.perf_counter() - started
                if batch is None:
                    break
                self._lend(batch)
                yield batch
                if running.ended:
                    raise RuntimeError(
                        "another iteration of this loader began before this one was done, and they "
                        "share one buffer: make a SampledLoader for each"
                    )
                if batch.hops.rung is not None:
                    self._free[batch.hops.rung].put(batch.hops)
                running.used()
        finally:
            running.end()
        self.epoch += 1

    def _lend(self, batch: SampledBatch | None) -> None:
        if self._last is not None:
            self._last.expire()
        self._last = batch

    def close(self) -> None:
        """Ends the threads."""
        if self._running is not None:
            self._running.end()
        self.states.close()

    # ------------------------------------------------------------------ the sampling thread

    def _batches(self, resident: ResidentGraph) -> Iterator[SampledBatch]:
        assert self.ladder is not None
        sampler = DenseSampler(resident.neighbours, self.fanouts)
        links = self._link_sampler(resident, sampler)
        rng = np.random.default_rng([self.seed, self.epoch, 2, resident.number])
        items = resident.edges if self.task == "link" else self._seed_rows(resident)
        if self.shuffle:
            items = items[rng.permutation(len(items))]
        for low in range(0, len(items), self.batch_size):
            draw = int(rng.integers(2**62))
            batch = items[low : low + self.batch_size]
            if self.task == "link":
                found = links.fit(batch, rng, draw, self.ladder)
            else:
                parts = self.ladder.fit(sampler, batch, draw)
                found = [(sample, rung, None) for _, sample, rung in parts]
            for sample, rung, ends in found:
                hops = self._slot(resident, sample, rung)
                seeds = resident.node_of[sample.nodes[: sample.counts[0]]]
                nodes = np.asarray(self.graph.node_ids[seeds])
                yield SampledBatch(hops, seeds, nodes, resident.number, ends)

    def _link_sampler(self, resident: ResidentGraph, sampler: DenseSampler) -> LinkSampler:
        return LinkSampler(
            resident, sampler, self.batch_size, self.negatives, self.degree_fraction, self.exclude
        )

    def _slot(self, resident: ResidentGraph, sample: DenseSample, rung: int | None) -> HopBatch:
        """Fills a batch in a free slot."""
        assert self.ladder is not None
        hops = None
        if rung is not None:
            try:
                hops = self._free.setdefault(rung, queue.SimpleQueue()).get_nowait()
            except queue.Empty:
                hops = HopBatch(self.ladder.rungs[rung], rung, self._pinned)
        if hops is None:
            hops = HopBatch(exact_capacity(sample), None)
        if hops.copied is not None:
            hops.copied.synchronize()
        hops.fill(sample, resident.degrees, resident.whole_degrees)
        width = resident.features.shape[1]
        if width:
            if hops.x is None:
                dtype = torch.from_numpy(resident.features[:0]).dtype
                hops.x = torch.zeros(
                    hops.capacity.rows, width, dtype=dtype, pin_memory=self._pinned
                )
            # Every row is in range; with bounds checks NumPy would copy twice.
            np.take(resident.features, hops.rows.numpy(), axis=0, out=hops.x.numpy(), mode="clip")
            # With NumPy, since torch cannot mask uint16 and wider unsigned dtypes.
            hops.x.numpy()[~hops.mask.numpy()] = 0
        if self._labels is not None:
            hops.y = torch.full((hops.capacity.nodes[0],), -1)
            seeds = resident.node_of[sample.nodes[: sample.counts[0]]]
            hops.y[: len(seeds)] = torch.from_numpy(self._labels[seeds])
        return hops

    # ------------------------------------------------------------------ static shapes

    def _require_shapes(self) -> None:
        """Rejects fan-outs or a batch size that the static shapes were not made for."""
        asked = tuple(self.fanouts), self.batch_size
        if asked != self._shapes_of:
            raise ValueError(
                f"fanouts and batch_size are {asked}, and the static shapes were made for "
                f"{self._shapes_of}: make another SampledLoader"
            )
        ways = 2 if self.direction == "both" else 1
        widths = tuple(ways * fanout for fanout in self.fanouts)
        if self.ladder is not None and self.ladder.rungs[0].widths != widths:
            raise ValueError(
                f"the ladder has widths {self.ladder.rungs[0].widths}, and fanouts={self.fanouts} "
                f"with direction={self.direction!r} have {widths}: give the ladder of these"
            )

    def _seed_rows(self, resident: ResidentGraph) -> NDArray[np.int64]:
        inside = np.isin(self._seeds // self.graph.partition_size, resident.train)
        return resident.rows(self._seeds[inside])

    def _profile(self, schedule: Schedule | NodeSchedule) -> HopLadder:
        """Returns a ladder for the batches of a few states; only their edges are read."""
        ladder: HopLadder | None = None
        looked_at = 0
        states = ResidentGraphs(self.graph, self.direction, features=False)
        for resident in states.run(schedule):
            sampler = DenseSampler(resident.neighbours, self.fanouts)
            if self.task == "link":
                found = self._link_sampler(resident, sampler).profile(self.seed)
            else:
                seeds = self._seed_rows(resident)
                found = profile(sampler, seeds, self.batch_size, self.seed) if len(seeds) else None
            if found is None:
                continue
            ladder = found if ladder is None else ladder.union(found)
            looked_at += 1
            if looked_at == PROFILE_STATES:
                break
        states.close()
        if ladder is None:
            raise ValueError("there is nothing to train on: no seeds in any state")
        return ladder


def _check_policy(task: str, policy: NodePolicy | EdgePolicy) -> None:
    of_nodes = isinstance(policy, NodePolicy)
    if not isinstance(policy, InMemory) and of_nodes != (task == "node"):
        raise ValueError(
            f"task={task!r} with {policy}: nodes are trained with NodeCache, Dispersed or "
            "InMemory, links with Beta, Comet or InMemory"
        )


def _check_negatives(negatives: int, degree_fraction: float) -> None:
    if negatives < 0 or not 0.0 <= degree_fraction <= 1.0:
        raise ValueError(
            f"negatives={negatives}, degree_fraction={degree_fraction}: give a number of nodes "
            "from 0 on, and a share of them, 0 to 1"
        )
