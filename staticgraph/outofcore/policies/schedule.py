"""Schedules: the states of the buffer in an epoch, what each trains on, and what they cost.

A schedule consists of plain numbers; a policy makes it before an epoch, and the code that reads
from disk follows it.

Its bias says how far it is from training on the edges in random order: after each state, each
partition has processed some share of the edges that touch it. In random order all shares would be
equal; the bias is the largest difference between any two, over all states: 0 is random, 1 means
that one partition had finished before another began. MariusGNN takes the shares per node, which
gives 1 for every policy on graphs with nodes of degree one: such a node goes from none to all of
its edges at once. Shares per partition weigh nodes by their edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

# A cell is the edges from one partition to another: (source partition, destination partition).
Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class State:
    """The buffer at one time.

    Attributes:
        partitions: resident partitions, ascending.
        cells: edges by (source partition, destination partition) trained on in this state; none in
            training on nodes.
        train: the partitions whose training nodes are used in this state; none in training on
            edges.
    """

    partitions: tuple[int, ...]
    cells: tuple[Cell, ...] = ()
    train: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """The states of one epoch of training on edges or on nodes.

    Attributes:
        num_partitions: p.
        states: in order.
        group: physical partitions that move together (1 unless partitions are grouped).
    """

    num_partitions: int
    states: tuple[State, ...]
    group: int = 1

    @property
    def reads(self) -> int:
        """Partitions read in the epoch, including those of the first state."""
        return sum(len(partitions) for partitions in self.entering())

    @property
    def swaps(self) -> int:
        """Number of groups of partitions read into the buffer after the first state."""
        return self.reads // self.group - len(self.states[0].partitions) // self.group

    def entering(self) -> list[tuple[int, ...]]:
        """Returns, for each state, the partitions that the one before did not hold."""
        held = [set(), *(set(state.partitions) for state in self.states)]
        return [tuple(sorted(now - before)) for before, now in pairwise(held)]


def edge_permutation_bias(schedule: Schedule, cell_sizes: ArrayLike | None = None) -> float:
    """Returns the largest difference in progress between two partitions, from 0 to 1.

    Partitions that no edge touches are ignored. ``cell_sizes`` are ``[p, p]`` edges per cell; all
    equal if None.

    Raises:
        ValueError: if ``cell_sizes`` does not have the schedule's number of partitions.
    """
    p = schedule.num_partitions
    sizes = np.ones((p, p)) if cell_sizes is None else np.asarray(cell_sizes, np.float64)
    if sizes.shape != (p, p):
        raise ValueError(f"cell_sizes has shape {sizes.shape}; the schedule has p={p}")
    met = np.zeros((len(schedule.states), p))
    for number, state in enumerate(schedule.states):
        for i, j in state.cells:
            met[number, [i, j]] += sizes[i, j]  # once, if both are the same
    total = met.sum(axis=0)
    touched = total > 0
    if not touched.any():
        return 0.0
    progress = np.cumsum(met[:, touched], axis=0) / total[touched]
    return float((progress.max(axis=1) - progress.min(axis=1)).max())
