"""Estimates capacities per hop from trial samples, with a small margin.

The worst case (seeds times all fan-outs) is several times the actual size, which varies by only
about one per cent. A rung therefore holds the mean plus a margin, or plus a few standard deviations
for small batches, which vary more; larger samples than the trial found climb the ladder and are
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.sampling.dense import DenseSampler
from staticgraph.outofcore.sampling.hops import HopCapacity, HopLadder

# Relative to the mean of the profile; the first held all of 400 batches on the graphs tried.
MARGINS = (0.05, 0.3)
# The least margin in standard deviations: small batches vary by more than the relative margin.
DEVIATIONS = 5.0
# Rows are a multiple of this, which suits vector units and matrix products.
ALIGNMENT = 8
PROFILE_BATCHES = 24


def profile(
    sampler: DenseSampler,
    seeds: NDArray[np.int64],
    batch_size: int,
    seed: int = 0,
    *,
    margins: Sequence[float] = MARGINS,
    batches: int = PROFILE_BATCHES,
) -> HopLadder:
    """Returns a ladder for batches of these seeds, from trial samples.

    Args:
        sampler: the sampler over the resident graph.
        seeds: the rows that batches are drawn from.
        batch_size: seeds per batch.
        seed: the random seed of the trial.
        margins: relative margins over the mean, one rung per margin.
        batches: the number of trial samples.

    Raises:
        ValueError: if there are no seeds.
    """
    if not len(seeds):
        raise ValueError("no seeds to profile with: this state trains on nothing; leave it out")
    size = min(batch_size, len(seeds))
    return profile_of(
        sampler,
        lambda rng: rng.choice(seeds, size, replace=False),
        batch_size,
        seed,
        margins=margins,
        batches=batches,
    )


def profile_of(
    sampler: DenseSampler,
    draw: Callable[[np.random.Generator], NDArray[np.int64]],
    most_seeds: int,
    seed: int = 0,
    *,
    margins: Sequence[float] = MARGINS,
    batches: int = PROFILE_BATCHES,
) -> HopLadder:
    """Returns a ladder for the seeds of ``draw``; every rung holds ``most_seeds`` of them."""
    rng = np.random.default_rng(seed)
    counts = np.array(
        [sampler.sample(draw(rng), int(rng.integers(2**62))).counts for _ in range(batches)]
    )
    mean, deviation = counts.mean(axis=0), counts.std(axis=0)
    rungs = []
    for number, margin in enumerate(sorted(margins)):
        spread = DEVIATIONS * (number + 1) * deviation
        wanted = np.ceil(np.maximum(mean * (1.0 + margin), mean + spread)).astype(int)
        nodes = [most_seeds]
        for hop, width in enumerate(sampler.widths, 1):
            # The upper bound: the nodes of the hop before times the width, or everything resident.
            most = min(nodes[-1] * width, sampler.neighbours.rows)
            nodes.append(min(-(-int(wanted[hop]) // ALIGNMENT) * ALIGNMENT, most))
        rungs.append(HopCapacity(tuple(nodes), sampler.widths))
    return HopLadder(tuple(rungs))
