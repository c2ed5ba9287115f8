"""The data for the drawings: sizes of the repository's data sets, and epochs over them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from staticgraph.packing.exact import exact_bounds
from staticgraph.packing.random import shuffle, stream_of
from staticgraph.sizes.whole_numbers import IntArray

DATA = Path(__file__).parents[2] / "examples" / "data"


def sizes_of(name: str) -> IntArray:
    """Returns ``[n, 2]`` nodes and directed edges of every graph in a file of molecules."""
    found = np.load(DATA / f"{name}.npz")
    return np.stack([found["num_nodes"], 2 * found["num_bonds"]], 1).astype(np.int64)


def as_drawn(total: int, batch_size: int, seed: int, epoch: int = 0) -> list[IntArray]:
    """Returns the batches of an epoch before any swap.

    They are drawn as :class:`~staticgraph.epochs.batcher.Batcher` draws them.
    """
    order = np.arange(total, dtype=np.int64)
    shuffle(order, stream_of(seed, epoch))
    bounds = exact_bounds(total, batch_size)
    return [order[start:stop] for start, stop in pairwise(bounds)]
