"""Policies for the order of partitions in the buffer: BETA, COMET and everything at once.

Problem: training on an edge needs the embeddings of both endpoints, so for each of the p*p edge
cells, the buffer of c partitions must at some time hold both of its partitions, with few reads, and
without an order of edges that hurts the model. BETA (Marius) keeps c-1 partitions and passes all
others through the last place, which is close to the minimum of reads; but it uses each cell as soon
as it can, so that consecutive batches are correlated. COMET (MariusGNN) runs BETA over random
groups of partitions, redrawn each epoch, and assigns each cell to a random one of the states that
hold it.

Invariant: every cell is used exactly once, with both endpoints resident, and one group is swapped
between states. These are pure functions: no disk, no clock, no global random state.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option

Assignment = Literal["greedy", "random"]
# A cell is the edges from one partition to another: (source partition, destination partition).
Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class State:
    """The buffer at one time.

    Attributes:
        partitions: resident partitions, ascending.
        cells: the edges that are trained on; none in training on nodes.
        train: the partitions whose training nodes are used; none in training on edges.
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


@dataclass(frozen=True, slots=True)
class InMemory:
    """All partitions resident in one state: the limit c = p of every policy."""

    def epoch(self, num_partitions: int, rng: np.random.Generator) -> Schedule:
        """Returns one state with every cell; no random numbers are drawn."""
        everything = tuple(range(num_partitions))
        state = State(everything, tuple(product(everything, everything)))
        return Schedule(num_partitions, (state,))

    def slots(self, num_partitions: int) -> int:
        """Returns the number of partitions resident at once."""
        return num_partitions


@dataclass(frozen=True, slots=True)
class _Buffered:
    """What policies with a buffer of fewer partitions than the graph share."""

    buffer: int

    def __post_init__(self) -> None:
        if whole_option("buffer", self.buffer) < 2:
            raise ValueError(
                f"buffer={self.buffer}: edges cross partitions, and both must be resident; give at "
                "least 2"
            )

    def slots(self, num_partitions: int) -> int:
        """Returns the number of partitions resident at once."""
        return min(self.buffer, num_partitions)


class _OfEdges(_Buffered):
    """What policies for training on edges share."""

    __slots__ = ()

    # Whether partitions are put in random order before they are grouped.
    _mixed: ClassVar[bool] = True
    assignment: Assignment

    def __post_init__(self) -> None:
        _Buffered.__post_init__(self)
        if self.assignment not in ("greedy", "random"):
            raise ValueError(f"assignment={self.assignment!r}; choose 'greedy' or 'random'")

    def epoch(self, num_partitions: int, rng: np.random.Generator) -> Schedule:
        """Returns the states of one epoch, in a new random order.

        Raises:
            ValueError: as :meth:`group`.
        """
        if self.buffer >= num_partitions:
            return InMemory().epoch(num_partitions, rng)
        size = self.group(num_partitions)
        members = rng.permutation(num_partitions) if self._mixed else np.arange(num_partitions)
        groups = members.reshape(-1, size)
        states = [
            tuple(sorted(groups[list(state)].ravel().tolist()))
            for state in _beta_states(len(groups), self.buffer // size, rng)
        ]
        resident = np.array([np.isin(np.arange(num_partitions), state) for state in states])
        cells: list[list[Cell]] = [[] for _ in states]
        for i, j in product(range(num_partitions), repeat=2):
            holding = np.flatnonzero(resident[:, i] & resident[:, j])
            cells[holding[0] if self.assignment == "greedy" else rng.choice(holding)].append((i, j))
        assigned = (State(*each) for each in zip(states, map(tuple, cells), strict=True))
        return Schedule(num_partitions, tuple(assigned), group=size)

    def group(self, num_partitions: int) -> int:
        """Returns the number of partitions swapped together."""
        return 1


@dataclass(frozen=True, slots=True)
class Beta(_OfEdges):
    """BETA: one partition moves at a time. Source: Marius, OSDI 2021, section 4.

    Args:
        buffer: the number of partitions that fit, at least 2.
        assignment: ``greedy`` trains on a cell in the first state that holds it, as published;
            ``random`` draws one of all states that hold it.

    Raises:
        ValueError: for a smaller buffer, or an unknown assignment.
    """

    assignment: Assignment = "greedy"
    _mixed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Comet(_OfEdges):
    """COMET: BETA over random groups of partitions. Source: MariusGNN, EuroSys 2023, section 5.

    Args:
        buffer: the number of physical partitions that fit, c.
        logical: logical partitions, l; None for 2p/c: two groups fit in the buffer, and groups are
            as few and large as possible.
        assignment: as in :class:`Beta`; random as published.

    Raises:
        ValueError: as for :class:`Beta`; :meth:`epoch` raises as :meth:`group`.
    """

    logical: int | None = None
    assignment: Assignment = "random"

    def group(self, num_partitions: int) -> int:
        """Returns the number of physical partitions per logical one, of more than the buffer holds.

        Raises:
            ValueError: if the groups do not divide the partitions, or not a whole number of at
                least two of them fits in the buffer.
        """
        logical = self.logical
        if logical is None:
            if 2 * num_partitions % self.buffer:
                raise ValueError(
                    f"2 * {num_partitions} partitions are not a multiple of the buffer of "
                    f"{self.buffer}: choose a buffer that divides {2 * num_partitions}, or give "
                    "logical="
                )
            logical = 2 * num_partitions // self.buffer
        if logical < 1 or num_partitions % logical:
            every = range(1, num_partitions + 1)
            raise ValueError(
                f"{logical} logical partitions do not divide {num_partitions} physical ones: "
                f"choose one of {[d for d in every if not num_partitions % d]}"
            )
        size = num_partitions // logical
        if self.buffer % size or self.buffer // size < 2:
            raise ValueError(
                f"a buffer of {self.buffer} holds {self.buffer / size:g} groups of "
                f"{how_many(size, 'partition')} ({logical} logical of {num_partitions}); it must "
                "hold a whole number, at least 2: raise logical= or the buffer"
            )
        return size


EdgePolicy = InMemory | Beta | Comet


@dataclass(frozen=True, slots=True)
class NodeCache(_Buffered):
    """Keeps the training partitions resident and fills the other places at random each epoch.

    Args:
        buffer: the number of partitions that fit, at least 2.
        near: the most other places reserved in every epoch for the partitions right after the
            training ones, for graphs from ``partition(near=)``.

    Raises:
        ValueError: if ``near`` is negative, or ``buffer`` is below 2.
    """

    near: int = 0

    def __post_init__(self) -> None:
        _Buffered.__post_init__(self)
        whole_option("near", self.near, 0)

    def epoch(
        self, num_partitions: int, training: tuple[int, ...], rng: np.random.Generator
    ) -> Schedule:
        """Returns a schedule of one state.

        Raises:
            ValueError: if the training partitions leave no place for another.
        """
        others = np.setdiff1d(np.arange(num_partitions), training)
        places = self.slots(num_partitions) - len(training)
        if places < min(1, len(others)):
            raise ValueError(
                f"training nodes fill {how_many(len(training), 'partition')}, and a buffer of "
                f"{self.buffer} leaves no place for another: raise the buffer, partition with "
                "training_nodes=, or use Dispersed"
            )
        neighbours = min(self.near, places)
        drawn = rng.choice(others[neighbours:], places - neighbours, replace=False)
        resident = tuple(sorted([*training, *others[:neighbours].tolist(), *drawn.tolist()]))
        return Schedule(num_partitions, (State(resident, train=tuple(sorted(training))),))


@dataclass(frozen=True, slots=True)
class Dispersed(_Buffered):
    """Passes all partitions through the buffer; training nodes are used while resident.

    Args:
        buffer: the number of partitions that fit, at least 2.
        step: the number of partitions replaced between states; half of the buffer if None.

    Raises:
        ValueError: if ``step`` is not from 1 to the buffer, or ``buffer`` is below 2.
    """

    step: int | None = None

    def __post_init__(self) -> None:
        _Buffered.__post_init__(self)
        if self.step is not None and not 1 <= whole_option("step", self.step) <= self.buffer:
            raise ValueError(f"step={self.step} must be from 1 to the buffer of {self.buffer}")

    def epoch(
        self, num_partitions: int, training: tuple[int, ...], rng: np.random.Generator
    ) -> Schedule:
        """Returns states that together hold all partitions; each trains once, in a random state."""
        order = rng.permutation(num_partitions).tolist()
        buffer = self.slots(num_partitions)
        step = self.step or max(1, buffer // 2)
        starts = [*range(0, num_partitions - buffer, step), num_partitions - buffer]
        held = [tuple(sorted(order[start : start + buffer])) for start in starts]
        train: list[list[int]] = [[] for _ in held]
        for partition in sorted(training):
            holding = [number for number, state in enumerate(held) if partition in state]
            train[holding[int(rng.integers(len(holding)))]].append(partition)
        states = zip(held, train, strict=True)
        return Schedule(num_partitions, tuple(State(h, train=tuple(t)) for h, t in states))


NodePolicy = NodeCache | Dispersed


def _beta_states(
    num_partitions: int, buffer: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Returns the buffers of BETA in order, each an ascending tuple, one partition apart.

    A round keeps all but one place and passes every partition outside through that place; the kept
    ones have then met all others, and are replaced for good, one by one.
    """
    order = rng.permutation(num_partitions).tolist()
    inside, outside = order[:buffer], order[buffer:]
    states = [tuple(sorted(inside))]
    while outside:
        rng.shuffle(inside)
        rng.shuffle(outside)
        for place in range(len(outside)):
            outside[place], inside[-1] = inside[-1], outside[place]
            states.append(tuple(sorted(inside)))
        rng.shuffle(outside)
        for place in range(min(buffer - 1, len(outside))):
            inside[place] = outside.pop()
            states.append(tuple(sorted(inside)))
    return states


def edge_permutation_bias(schedule: Schedule, cell_sizes: ArrayLike | None = None) -> float:
    """Returns how far a schedule is from training on the edges in random order, from 0 to 1.

    After each state, each partition has processed some share of the edges that touch it: in random
    order all shares would be equal, and 1 means that one partition had finished before another
    began. The bias is the largest difference between any two, over all states. MariusGNN takes the
    shares per node, which gives 1 for every policy where a node has one edge.

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
