"""Which partitions are in the buffer when nodes, not edges, are trained on.

A training node needs its neighbourhood, of which only the resident part can be sampled. Training
nodes are few, so the published answer stores them in the first partitions and keeps those resident
all epoch, beside a random choice of the others that is drawn again each epoch: no swap within an
epoch. Where the partitions behind them hold what the training nodes reach
(:mod:`staticgraph.outofcore.disk.nearness`), those are kept too: in place of a random part of each
neighbourhood all of it is there, or most. Where training nodes are too many for that, they stay
dispersed over all partitions, which then pass through the buffer a group at a time. Source:
MariusGNN, EuroSys 2023, section 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from staticgraph.outofcore.policies.schedule import NodeSchedule, NodeState
from staticgraph.text.how_many import how_many


@dataclass(frozen=True, slots=True)
class NodeCache:
    """Training partitions always resident, the other places filled at random each epoch.

    Args:
        buffer: partitions that fit.
        near: of the other places, how many belong to the partitions right behind the training ones
            in every epoch; all where there are fewer. For graphs of ``partition(near=)``.

    Raises:
        ValueError: ``near`` is negative.
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
        """One state.

        Raises:
            ValueError: the training partitions leave no place for another.
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
        """Partitions that are resident at once."""
        return min(self.buffer, num_partitions)


@dataclass(frozen=True, slots=True)
class Dispersed:
    """All partitions pass through the buffer; training nodes are used while theirs is there.

    Args:
        buffer: partitions that fit.
        step: partitions that are replaced between states; half of the buffer where None.

    Raises:
        ValueError: ``step`` is not from 1 to the buffer.
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
        """States that together hold every partition, each used in a random state that holds it."""
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
        """Partitions that are resident at once."""
        return min(self.buffer, num_partitions)


NodePolicy = NodeCache | Dispersed


def _check(buffer: int) -> None:
    if buffer < 2:
        raise ValueError(f"buffer={buffer}: neighbourhoods cross partitions; give at least 2")
