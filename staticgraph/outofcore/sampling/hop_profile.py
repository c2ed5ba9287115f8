"""Capacities per hop from trial samples: what a batch needs, and a little more.

The bound that always holds (seeds times all fan-outs) is several times what occurs, and what occurs
varies by about one part in a hundred. So a rung holds the mean and a margin, or a few deviations
where small batches vary by more; what a trial did not see climbs the ladder and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.sampling.dense import DenseSampler
from staticgraph.outofcore.sampling.hops import HopCapacity, HopLadder

# Over the mean of the profile; the first held all of 400 batches on the graphs tried.
MARGINS = (0.05, 0.3)
# Deviations over the mean that a rung has at least: small batches vary by more than the margin.
DEVIATIONS = 5.0
# Rows are a multiple of this, as vector units and matrix products like them.
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
    """A ladder for batches of these seeds, from trial samples.

    Args:
        sampler: over what is resident.
        seeds: the rows that batches are drawn from.
        batch_size: seeds of a batch.
        seed: of the trial.
        margins: over the mean, a rung each.
        batches: trial samples.

    Raises:
        ValueError: there are no seeds.
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
    """A ladder for whatever seeds ``draw`` gives, ``most_seeds`` of them in every rung."""
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
            # More cannot occur: the nodes before times the width, or everything resident.
            most = min(nodes[-1] * width, sampler.neighbours.rows)
            nodes.append(min(-(-int(wanted[hop]) // ALIGNMENT) * ALIGNMENT, most))
        rungs.append(HopCapacity(tuple(nodes), sampler.widths))
    return HopLadder(tuple(rungs))
