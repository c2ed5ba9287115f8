"""Policies that choose the resident partitions for training on nodes instead of edges.

A training node needs its neighbourhood, of which only the resident part can be sampled. If training
nodes are few, the published policy stores them in the first partitions and keeps those resident for
the whole epoch, together with a random choice of the others that is redrawn each epoch: no swaps
within an epoch. If the partitions after them hold the nodes that training nodes reach
(:mod:`staticgraph.outofcore.disk.nearness`), those can be kept too: instead of a random part of
each neighbourhood, all or most of it is resident. If training nodes are too many for that, they
stay dispersed over all partitions, which then pass through the buffer one group at a time. Source:
MariusGNN, EuroSys 2023, section 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from staticgraph.outofcore.policies.schedule import NodeSchedule, NodeState
from staticgraph.text.how_many import how_many


@dataclass(frozen=True, slots=True)
class NodeCache:
    """Keeps the training partitions resident and fills the other places at random each epoch.

    Args:
        buffer: the number of partitions that fit, at least 2.
        near: the number of other places reserved in every epoch for the partitions right after the
            training ones; all other places if there are fewer. For graphs from
            ``partition(near=)``.

    Raises:
        ValueError: if ``near`` is negative, or ``buffer`` is below 2.
    """

    buffer: int
    near: int = 0

    def __post_init__(self) -> None:
        _check(self.buffer)
        if self.near < 0:
            raise ValueError(f"near={self.near} places; give 0 or more")

    def epoch(
        self, num_partitions: int, training: tuple[int, ...], rng: np.random.Generator
    ) -> NodeSchedule:
        """Returns a schedule of one state.

        Raises:
            ValueError: if the training partitions leave no place for another.
        """
        others = np.setdiff1d(np.arange(num_partitions), training)
        places = min(self.buffer, num_partitions) - len(training)
        if places < min(1, len(others)):
            raise ValueError(
                f"training nodes fill {how_many(len(training), 'partition')}, and a buffer of "
                f"{self.buffer} leaves no place for another: raise the buffer, partition with "
                "training_nodes=, or use Dispersed"
            )
        kept = min(self.near, places)
        drawn = rng.choice(others[kept:], places - kept, replace=False) if places > kept else []
        resident = tuple(sorted([*training, *others[:kept].tolist(), *np.asarray(drawn).tolist()]))
        return NodeSchedule(num_partitions, (NodeState(resident, tuple(sorted(training))),))

    def slots(self, num_partitions: int) -> int:
        """Returns the number of partitions resident at once."""
        return min(self.buffer, num_partitions)


@dataclass(frozen=True, slots=True)
class Dispersed:
    """Passes all partitions through the buffer; training nodes are used while resident.

    Args:
        buffer: the number of partitions that fit, at least 2.
        step: the number of partitions replaced between states; half of the buffer if None.

    Raises:
        ValueError: if ``step`` is not from 1 to the buffer, or ``buffer`` is below 2.
    """

    buffer: int
    step: int | None = None

    def __post_init__(self) -> None:
        _check(self.buffer)
        if self.step is not None and not 1 <= self.step <= self.buffer:
            raise ValueError(f"step={self.step} must be from 1 to the buffer of {self.buffer}")

    def epoch(
        self, num_partitions: int, training: tuple[int, ...], rng: np.random.Generator
    ) -> NodeSchedule:
        """Returns states that together hold all partitions; each trains once, in a random state."""
        order = rng.permutation(num_partitions).tolist()
        buffer = min(self.buffer, num_partitions)
        step = self.step or max(1, buffer // 2)
        starts = [*range(0, num_partitions - buffer, step), num_partitions - buffer]
        held = [tuple(sorted(order[start : start + buffer])) for start in starts]
        train: list[list[int]] = [[] for _ in held]
        for partition in sorted(training):
            holding = [number for number, state in enumerate(held) if partition in state]
            train[holding[int(rng.integers(len(holding)))]].append(partition)
        states = zip(held, train, strict=True)
        return NodeSchedule(num_partitions, tuple(NodeState(h, tuple(t)) for h, t in states))

    def slots(self, num_partitions: int) -> int:
        """Returns the number of partitions resident at once."""
        return min(self.buffer, num_partitions)


NodePolicy = NodeCache | Dispersed


def _check(buffer: int) -> None:
    if buffer < 2:
        raise ValueError(f"buffer={buffer}: neighbourhoods cross partitions; give at least 2")
