"""Sampled neighbourhoods in fixed shapes: capacities per hop, and a ladder of a few of them.

Problem: the sizes of a sample differ from batch to batch, and the worst case (batch size times all
fan-outs) is several times the actual size. Idea: the number of nodes first reached at a hop varies
by about one per cent, so a capacity a few per cent over the mean holds nearly every batch; the
others climb to the next rung, and a batch that fits no rung is sampled again in two halves of its
seeds. Invariant: no node or edge of a sample is ever dropped.

Hop h has ``N_h`` rows, hops are concatenated, and position 0 is a dump row of zeros: a draw without
a neighbour points to it, and aggregation is gather, view, sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.jit import loop
from staticgraph.outofcore.sampling.dense import DenseSample, DenseSampler


@dataclass(frozen=True, slots=True)
class HopCapacity:
    """One static shape.

    Attributes:
        nodes: ``N_0 .. N_k``; rows of each hop, the seeds first.
        widths: ``f_0 .. f_{k-1}``; columns of each hop's draws.

    Raises:
        ValueError: if there is not exactly one more of nodes than of widths, or no seed, or no
            column.
    """

    nodes: tuple[int, ...]
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.widths) + 1 or min(self.nodes[:1] + self.widths) < 1:
            raise ValueError(
                f"nodes={self.nodes}, widths={self.widths}: give one more capacity than widths, "
                "and at least one seed and one column"
            )

    @property
    def rows(self) -> int:
        """Number of rows of all hops, without the dump row."""
        return sum(self.nodes)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each hop, and the end."""
        return (0, *accumulate(self.nodes))

    def holds(self, counts: Sequence[int]) -> bool:
        """Returns whether a sample with these numbers of nodes per hop fits."""
        return all(n <= capacity for n, capacity in zip(counts, self.nodes, strict=True))


@dataclass(slots=True)
class HopStatistics:
    """Counts of how a ladder was used."""

    batches: list[int]
    splits: int = 0
    eager: int = 0
    real_rows: int = 0
    padded_rows: int = 0

    @property
    def efficiency(self) -> float:
        """Real rows divided by padded rows."""
        return self.real_rows / self.padded_rows if self.padded_rows else 1.0


@dataclass(frozen=True, slots=True)
class HopLadder:
    """Capacities, smallest first; each holds all samples that the ones before it hold.

    Raises:
        ValueError: if there is no rung, or a rung does not hold the one before it.
    """

    rungs: tuple[HopCapacity, ...]
    statistics: HopStatistics = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.rungs:
            raise ValueError("a ladder needs at least one rung")
        for below, above in zip(self.rungs, self.rungs[1:], strict=False):
            if not above.holds(below.nodes) or above.widths != below.widths:
                raise ValueError(f"{above} does not hold {below}: put the rungs in order")
        object.__setattr__(self, "statistics", HopStatistics([0] * len(self.rungs)))

    def rung_for(self, counts: Sequence[int]) -> int | None:
        """Returns the first rung that holds a sample, or None."""
        return next((r for r, rung in enumerate(self.rungs) if rung.holds(counts)), None)

    def fit(
        self, sampler: DenseSampler, seeds: NDArray[np.int64], seed: int
    ) -> list[tuple[NDArray[np.int64], DenseSample, int | None]]:
        """Samples seeds so that each sample fits a rung.

        Returns:
            Parts of the seeds in order, each with its sample and its rung. Usually there is one
            part; if the whole fits no rung, it is halved, recursively. The rung is None for a
            single seed that fits none, which the caller runs eagerly in its own shape.
        """
        sample = sampler.sample(seeds, seed)
        rung = self.rung_for(sample.counts)
        if rung is None and len(seeds) > 1:
            self.statistics.splits += 1
            middle = len(seeds) // 2
            return [
                *self.fit(sampler, seeds[:middle], seed),
                *self.fit(sampler, seeds[middle:], seed),
            ]
        self.count(sample, rung)
        return [(seeds, sample, rung)]

    def count(self, sample: DenseSample, rung: int | None) -> None:
        """Counts a sample in the statistics."""
        if rung is None:
            self.statistics.eager += 1
        else:
            self.statistics.batches[rung] += 1
            self.statistics.real_rows += len(sample.nodes)
            self.statistics.padded_rows += self.rungs[rung].rows

    def union(self, other: HopLadder) -> HopLadder:
        """Returns a ladder whose rungs hold those of both ladders."""
        pairs = zip(self.rungs, other.rungs, strict=True)
        return HopLadder(
            tuple(HopCapacity(tuple(map(max, a.nodes, b.nodes)), a.widths) for a, b in pairs)
        )


class HopBatch:
    """A sample padded to a capacity.

    Attributes:
        capacity: its shapes.
        rung: its rung of the ladder; None if it has a shape of its own.
        rows: ``[R]`` int64 rows of the buffer; 0 in the padding.
        draws: ``[N_h, f_h]`` int64 per hop: 1 + position of the neighbour, 0 for no neighbour.
        degree: ``[R]`` float32 resident neighbours, without self-loops; the draws are a sample of
            them.
        whole: ``[R]`` float32 the same in the whole graph.
        mask: ``[R]`` bool; real rows.
        x: ``[R, F]`` features, zeros in the padding; None until filled.
        y: ``[N_0]`` labels of the seeds; None without labels.
        copied: an event recorded after the copy to a device; the slot is not refilled before it.
    """

    capacity: HopCapacity
    degree: Tensor
    rung: int | None
    whole: Tensor

    __slots__ = (
        "capacity",
        "copied",
        "degree",
        "draws",
        "mask",
        "rows",
        "rung",
        "whole",
        "x",
        "y",
    )  # fmt: skip

    def __init__(self, capacity: HopCapacity, rung: int | None, pinned: bool = False) -> None:
        rows, sizes = capacity.rows, zip(capacity.nodes, capacity.widths, strict=False)
        self.capacity, self.rung = capacity, rung
        self.rows: Tensor = torch.zeros(rows, dtype=torch.int64, pin_memory=pinned)
        self.degree, self.whole = torch.zeros(2, rows, pin_memory=pinned)
        self.mask: Tensor = torch.zeros(rows, dtype=torch.bool, pin_memory=pinned)
        self.draws: tuple[Tensor, ...] = tuple(
            torch.zeros(n, width, dtype=torch.int64, pin_memory=pinned) for n, width in sizes
        )
        self.x: Tensor | None = None
        self.y: Tensor | None = None
        self.copied: torch.cuda.Event | None = None

    @property
    def hops(self) -> int:
        """Number of hops, k."""
        return len(self.draws)

    def fill(
        self,
        sample: DenseSample,
        degrees: NDArray[np.int64],
        whole: NDArray[np.int64] | None = None,
    ) -> HopBatch:
        """Writes a sample, overwriting all previous contents.

        Args:
            sample: the sample.
            degrees: ``[rows]`` neighbours that could be drawn, without self-loops.
            whole: ``[rows]`` the same in the whole graph; None if it equals ``degrees`` because
                everything is resident.

        Raises:
            ValueError: if the sample does not fit.
        """
        widths = tuple(drawn.shape[1] for drawn in sample.draws)
        if widths != self.capacity.widths:
            raise ValueError(
                f"a sample of {widths} neighbours per hop is not of the widths "
                f"{self.capacity.widths}: sample with the fan-outs of the ladder"
            )
        if not self.capacity.holds(sample.counts):
            raise ValueError(
                f"a sample of {sample.counts} nodes per hop does not fit {self.capacity.nodes}: "
                "climb to the next rung, or split the seeds"
            )
        starts = np.array(self.capacity.starts, np.int64)
        hops = np.array(sample.hops, np.int64)
        _place(sample.nodes, hops, starts, degrees, degrees if whole is None else whole,
               self.rows.numpy(), self.degree.numpy(), self.whole.numpy(), self.mask.numpy(),
               )  # fmt: skip
        for drawn, padded in zip(sample.draws, self.draws, strict=True):
            _shift(drawn, hops, starts, padded.numpy())
        return self


def exact_capacity(sample: DenseSample) -> HopCapacity:
    """Returns the capacity of one sample without padding, with at least one seed row."""
    return HopCapacity(
        (max(1, sample.counts[0]), *sample.counts[1:]),
        tuple(drawn.shape[1] for drawn in sample.draws),
    )


@loop
def _place(nodes, hops, starts, degrees, all_degrees, rows, degree, whole, mask):
    rows[:] = 0
    degree[:] = 0
    whole[:] = 0
    mask[:] = False
    for hop in range(len(hops) - 1):
        for i in range(hops[hop], hops[hop + 1]):
            at = starts[hop] + i - hops[hop]
            rows[at] = nodes[i]
            degree[at] = degrees[nodes[i]]
            whole[at] = all_degrees[nodes[i]]
            mask[at] = True


@loop
def _shift(drawn, hops, starts, padded):
    """Converts positions in a sample to 1 + positions in the padded rows."""
    padded[:] = 0
    for i in range(drawn.shape[0]):
        for r in range(drawn.shape[1]):
            position = drawn[i, r]
            if position >= 0:
                hop = 0
                while position >= hops[hop + 1]:
                    hop += 1
                padded[i, r] = 1 + starts[hop] + position - hops[hop]
