"""Sampled mini-batches of a partitioned graph, in a few static shapes.

While the current state of the buffer is used, a thread reads the partitions of the next one and
another samples the coming batches. Every seed of a task (a training node, or an edge) occurs
exactly once per epoch. Random draws depend only on (seed, epoch, state, batch), not on threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import BadGraph
from staticgraph.outofcore.disk.graph import Direction, PartitionedGraph, require_direction
from staticgraph.outofcore.disk.inputs import class_labels
from staticgraph.outofcore.policies.policy import EdgePolicy, InMemory, NodePolicy, Schedule, State
from staticgraph.outofcore.sampling.buffer import PartitionBuffer, ResidentGraph
from staticgraph.outofcore.sampling.dense import DenseSample
from staticgraph.outofcore.sampling.link_sampling import LinkEnds, LinkSeeds, take_out
from staticgraph.outofcore.sampling.sampled_graph import (
    SampleStatistics,
    batch_of,
    plan_of,
    schema_of,
    size_of,
)
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.positions import positions_in
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option

# The states of the first epoch that buckets are estimated from, and the samples of each.
TRIAL_STATES, TRIAL_SAMPLES = 4, 24
# Batches sampled ahead.
AHEAD = 4
# Why an option of the other task is refused.
OTHER_TASK = {
    "node": "they are of edges, and task='node' has none to predict: leave them out",
    "link": "they are of nodes, and task='link' trains on every edge of the graph: leave them out, "
    "and partition the edges to train on alone",
}


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """A batch of a sampled loader.

    Attributes:
        graph: the sampled neighbourhood, whose first ``len(seeds)`` nodes are the seeds; None if
            nothing is sampled.
        seeds: ``[n]`` the graph's numbers of the seeds.
        nodes: ``[n]`` the caller's numbers of the seeds, which index the caller's arrays.
        rows: ``[m]`` the rows of the buffer that hold the values of the sampled nodes.
        state: the number of the state of the buffer in which it was sampled.
        ends: for links, the positions of the edges' endpoints among the seeds; None for nodes.
    """

    graph: StaticBatch | None
    seeds: IntArray
    nodes: IntArray
    rows: IntArray
    state: int
    ends: LinkEnds | None = None


class SampledLoader:
    """Iterates over sampled batches, one epoch per iteration.

    Each batch has its own memory. ``batch.graph`` has the fields ``x`` (``[N, F]`` float32), ``y``
    (``[N]``, -1 for nodes that are no seeds or have no label) and ``edge_weight`` (``[E]``), each
    if there is something to put into it.

    Args:
        graph: the partitioned graph, with features if the model needs them.
        policy: for nodes ``NodeCache`` or ``Dispersed``, for edges ``Beta`` or ``Comet``;
            ``InMemory`` for both.
        fanouts: neighbours per node and direction, hop by hop, at least 1 each; a fan-out of the
            largest degree takes all neighbours. Links may have none: nothing is sampled then.
        batch_size: seed nodes per batch, or edges per batch for links.
        task: ``node`` or ``link``.
        seeds: the caller's numbers of the nodes to train on, or a mask; None for all. Nodes only.
        labels: ``[N]`` classes in the caller's order, -1 for none; nodes only.
        negatives: resident nodes drawn for each batch of edges; links only.
        chunks: parts of a batch, to a whole number of which its edges are padded, and its negatives
            cut; divides ``batch_size`` and ``negatives``. Links only.
        degree_fraction: share of the negatives drawn as endpoints of the state's edges, so by
            degree; links only.
        exclude: remove a batch's own edges from its samples, so that the model does not see what it
            should predict; links only.
        gcn_norm: give each node one self-loop, and the edges GCN's weights by degrees of the whole
            graph, for ``GCNConv(normalize=False)``.
        direction: the direction of sampling.
        plan: the buckets; if None, they are estimated from the first states of an epoch.
        shuffle: use the seeds in random order; otherwise in the graph's order.
        seed: the seed of all random draws.

    Attributes:
        states: the buffer, of the graph's features; training on edges exchanges it.
        epoch: the number of complete iterations.
        waited_s: seconds that the consumer waited for batches.

    Raises:
        ValueError: for a policy or an option of the other task, labels of another length or that
            are not classes, a fan-out or batch size below 1, or chunks that do not divide.
        BadGraph: if a seed is not a node of the graph.
    """

    graph: PartitionedGraph
    policy: NodePolicy | EdgePolicy
    direction: Direction
    gcn_norm: bool
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
        chunks: int = 1,
        degree_fraction: float = 0.0,
        exclude: bool = False,
        gcn_norm: bool = False,
        direction: Direction = "in",
        plan: BucketPlan | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        of_nodes = {"seeds": seeds is not None, "labels": labels is not None}
        of_links = {"negatives": negatives, "degree_fraction": degree_fraction, "exclude": exclude}
        _check_task(task, policy, of_nodes if task == "link" else of_links)
        require_direction(direction)
        self.batch_size: int = whole_option("batch_size", batch_size, 1)
        try:
            self.fanouts: tuple[int, ...] = tuple(whole_option("fanouts", each) for each in fanouts)
        except TypeError:
            raise ValueError(f"fanouts={fanouts!r}: give a list, one for each hop") from None
        if min(self.fanouts, default=0 if task == "node" else 1) < 1:
            raise ValueError(
                f"fanouts={list(self.fanouts)}: give at least one hop, each at least 1; for all "
                "neighbours the largest degree, such as int(graph.degrees().max())"
            )
        self.graph, self.policy, self.task = graph, policy, task
        self.gcn_norm, self.direction = gcn_norm, direction
        self.shuffle, self.seed, self.epoch = shuffle, whole_option("seed", seed, 0), 0
        self.waited_s: float = 0.0
        self._links = LinkSeeds(self.batch_size, chunks, negatives, degree_fraction)
        self._exclude = exclude
        self._plan, self._iteration = plan, 0
        self._seeds = np.sort(
            np.arange(graph.num_nodes)
            if seeds is None
            else graph.numbers[
                np.unique(positions_in(seeds, graph.num_nodes, "seeds", "node", BadGraph))
            ]
        )
        self._labels = None
        if labels is not None:
            self._labels = class_labels(labels, graph.num_nodes)[graph.node_ids]
        self.states: PartitionBuffer = PartitionBuffer(graph, direction)

    @property
    def classes(self) -> int:
        """One more than the largest label; 0 without labels."""
        return 0 if self._labels is None else int(self._labels.max(initial=-1)) + 1

    @cached_property
    def plan(self) -> BucketPlan:
        """The buckets of the batches, for a :class:`staticgraph.StaticGraphRunner`."""
        if self._plan is not None:
            return self._plan
        # The most that the seeds of a batch of one node or edge can reach.
        ways = 2 if self.direction == "both" else 1
        rows = self.policy.slots(self.graph.num_partitions) * self.graph.partition_size
        seeds = 1 if self.task == "node" else 2 + self._links.negatives // self._links.chunks
        nodes = hop = min(seeds, rows)
        edges = 0
        for fanout in self.fanouts:
            hop *= ways * fanout
            edges += hop
            hop = min(hop, rows)
            nodes = min(nodes + hop, rows)
        edges = min(edges, ways * self.graph.num_edges) + self.gcn_norm * nodes
        return plan_of(self._trials(), (nodes, edges), self._schema)

    @cached_property
    def statistics(self) -> SampleStatistics:
        """How the buckets were used."""
        return SampleStatistics([0] * len(self.plan.capacities))

    def schedule(self, epoch: int) -> Schedule:
        """Returns the schedule of the buffer for an epoch."""
        rng, p = np.random.default_rng([self.seed, epoch, 1]), self.graph.num_partitions
        if isinstance(self.policy, NodePolicy):
            holding = np.unique(self._seeds // self.graph.partition_size).tolist()
            return self.policy.epoch(p, tuple(holding), rng)
        if self.task == "link":
            return self.policy.epoch(p, rng)
        everything = tuple(range(p))
        return Schedule(p, (State(everything, train=everything),))

    def __iter__(self) -> Iterator[SampledBatch]:
        """Yields the batches of one epoch.

        The loader has one buffer, so another iteration ends this one.

        Raises:
            RuntimeError: if another iteration of this loader has begun.
        """
        self._iteration += 1
        number = self._iteration
        with closing(self._all_batches()) as batches:
            while True:
                started = time.perf_counter()
                batch = next(batches, None)
                self.waited_s += time.perf_counter() - started
                if batch is None:
                    break
                yield batch
                if self._iteration != number:
                    raise RuntimeError(
                        "another iteration of this loader began before this one was done, and they "
                        "share one buffer: make a SampledLoader for each"
                    )
        self.epoch += 1

    def close(self) -> None:
        """Ends the threads."""
        self.states.close()

    def _all_batches(self) -> Generator[SampledBatch, None, None]:
        """Yields the batches of an epoch; those of a state are sampled ahead in a thread."""
        with ThreadPoolExecutor(1, "staticgraph-sampler") as thread:
            for resident in self.states.run(self.schedule(self.epoch)):
                batches = self._batches(resident)
                ahead: deque[Future[SampledBatch | None]] = deque()
                try:
                    ahead.extend(thread.submit(next, batches, None) for _ in range(AHEAD))
                    while (batch := ahead.popleft().result()) is not None:
                        ahead.append(thread.submit(next, batches, None))
                        yield batch
                finally:
                    for future in ahead:
                        future.cancel()

    def _batches(self, resident: ResidentGraph) -> Iterator[SampledBatch]:
        """Yields the batches of a state; in their place two halves where no bucket holds one."""
        rng = np.random.default_rng([self.seed, self.epoch, 2, resident.number])
        items = self._items(resident)
        if self.shuffle:
            items = items[rng.permutation(len(items))]
        for low in range(0, len(items), self.batch_size):
            waiting = [items[low : low + self.batch_size]]
            key = int(rng.integers(2**62)) if self.fanouts else 0
            while waiting:
                batch = waiting.pop()
                rows, ends = self._draw(batch, resident, rng)
                seeds, graph = len(rows), None
                if self.fanouts:
                    sample = resident.neighbours.sample(rows, self.fanouts, key)
                    graph, rows = self._graph_of(sample, ends, resident), sample.nodes
                    if graph is None:
                        if len(batch) == 1:
                            nodes, edges = size_of(sample, self.gcn_norm)
                            raise ValueError(
                                f"one seed reaches {how_many(nodes, 'node')} and "
                                f"{how_many(edges, 'edge')}, and the plan's largest bucket is "
                                f"{self.plan.capacities[-1]}: give a larger one, or no plan"
                            )
                        self.statistics.splits += 1
                        middle = len(batch) // 2
                        waiting += batch[middle:], batch[:middle]
                        continue
                numbers = resident.node_of[rows[:seeds]]
                nodes = np.asarray(self.graph.node_ids[numbers])
                yield SampledBatch(graph, numbers, nodes, rows, resident.number, ends)

    def _draw(
        self, items: NDArray[Any], resident: ResidentGraph, rng: np.random.Generator
    ) -> tuple[IntArray, LinkEnds | None]:
        """Returns the seeds of a batch of nodes or edges, as rows."""
        return (items, None) if self.task == "node" else self._links.draw(items, resident, rng)

    def _graph_of(
        self, sample: DenseSample, ends: LinkEnds | None, resident: ResidentGraph
    ) -> StaticBatch | None:
        """Pads a sample to the first bucket that holds it, and counts its use; or None."""
        rows, seeds = sample.nodes, sample.hops[1]
        n, e = size_of(sample, self.gcn_norm)
        for layout in self._layouts:
            if n <= layout.capacity.node_limit and e <= layout.capacity.edge_limit:
                break
        else:
            return None
        self.statistics.batches[layout.bucket] += 1
        self.statistics.real_rows += n
        self.statistics.padded_rows += layout.capacity.nodes
        if ends is not None and self._exclude:
            take_out(sample, ends)
        nodes: dict[str, NDArray[Any]] = {}
        if self.states.width:
            # What training changes is read when the batch's turn comes.
            nodes["x"] = np.zeros((n, self.states.width), np.float32)
            if not self.states.mutable:
                nodes["x"] = resident.values[rows].astype(np.float32, copy=False)
        if self._labels is not None:
            nodes["y"] = np.full(n, -1)
            nodes["y"][:seeds] = self._labels[resident.node_of[rows[:seeds]]]
        degrees = (resident.neighbours.degrees, resident.whole_degrees) if self.gcn_norm else ()
        return batch_of(layout, sample, nodes, *(each[rows] for each in degrees))

    def _items(self, resident: ResidentGraph) -> NDArray[Any]:
        """Returns what a state trains on: its edges, or the rows of its seeds."""
        if self.task == "link":
            return resident.edges
        inside = np.isin(self._seeds // self.graph.partition_size, resident.state.train)
        return resident.rows(self._seeds[inside])

    @cached_property
    def _schema(self) -> Schema:
        labels = self._labels is not None
        return schema_of(self.states.width, labels=labels, weights=self.gcn_norm)

    @cached_property
    def _layouts(self) -> list[SlotLayout]:
        return [SlotLayout(k, each, self._schema) for k, each in enumerate(self.plan.capacities)]

    def _trials(self) -> list[IntArray]:
        """Returns nodes and edges of trial samples of a few states; only their edges are read."""
        trials: list[IntArray] = []
        states = PartitionBuffer(self.graph, self.direction, features=False)
        rng = np.random.default_rng(self.seed)
        for resident in states.run(self.schedule(0)):
            if not len(items := self._items(resident)):
                continue
            size, sizes = min(self.batch_size, len(items)), []
            for _ in range(TRIAL_SAMPLES):
                batch = items[rng.choice(len(items), size, replace=False)]
                seeds, _ = self._draw(batch, resident, rng)
                sample = resident.neighbours.sample(seeds, self.fanouts, int(rng.integers(2**62)))
                sizes.append(size_of(sample, self.gcn_norm))
            trials.append(np.array(sizes))
            if len(trials) == TRIAL_STATES:
                break
        states.close()
        if not trials:
            raise ValueError("there is nothing to train on: no seeds in any state")
        return trials


def _check_task(
    task: str, policy: NodePolicy | EdgePolicy, of_other_task: Mapping[str, Any]
) -> None:
    """Rejects another task, a policy of the other one, and options that would be ignored."""
    if task not in ("node", "link"):
        raise ValueError(f"task={task!r}; choose 'node' or 'link'")
    if ignored := ", ".join(f"{name}=" for name, value in of_other_task.items() if value):
        raise ValueError(f"task={task!r} with {ignored}: {OTHER_TASK[task]}")
    if not isinstance(policy, InMemory) and isinstance(policy, NodePolicy) != (task == "node"):
        raise ValueError(
            f"task={task!r} with {policy}: nodes are trained with NodeCache, Dispersed or "
            "InMemory, links with Beta, Comet or InMemory"
        )
