"""A random order that reads a disk in contiguous stretches: a few blocks of graphs mixed at a time.

The problem: an epoch in random order over a store larger than memory reads one page per graph. The
idea: adjacent graphs of the store form a *block*; blocks come in random order, and the graphs of a
*window* of blocks are shuffled together. Only whole blocks are read, each once per epoch, and only
one window of them must be in memory.

The bias: two graphs of one block meet in a batch more often than two of different blocks. In a
store whose graphs are in no particular order this has no effect. Where they are sorted, by label
for example, a batch's mean label varies as if it were drawn from one window: its variance is that
of a random batch times ``1 + rho * (b - 1) / w`` (:func:`spread`), with ``b`` graphs per batch,
``w`` blocks per window, and ``rho`` the share of the label's variance that lies between blocks: 1
where each block has one label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from staticgraph.epochs.windows import level
from staticgraph.jit import loop
from staticgraph.packing.random import STEP, below, shuffle, stream_of
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.numeric_options import whole_option

# Incremented whenever the same seed gives another order, so that no epoch resumes in a different
# one.
ORDER_VERSION = 2


@dataclass(frozen=True, slots=True)
class Blocks:
    """How an order in blocks is drawn.

    Attributes:
        graphs: graphs per block; for molecules 2,048 are about two megabytes.
        window: the number of blocks that are mixed.

    Raises:
        ValueError: either of them is not a whole number of at least 1.
    """

    graphs: int = 2048
    window: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "graphs", whole_option("graphs", self.graphs, 1))
        object.__setattr__(self, "window", whole_option("window", self.window, 1))


class Order(NamedTuple):
    """The graphs of an epoch.

    Attributes:
        graphs: ``[n]`` positions of the graphs, window by window, in the dtype of the input.
        bounds: ``[W + 1]`` where each window begins and ends in ``graphs``.
    """

    graphs: IntArray
    bounds: IntArray


class Room(NamedTuple):
    """What a window should fit.

    Attributes:
        sizes: ``[., C]`` sizes of every graph of the store.
        most: ``[C]`` the bucket's limits per graph of an exact batch.
    """

    sizes: IntArray
    most: NDArray[np.float64]


def block_order(
    indices: IntArray,
    blocks: Blocks,
    seed: int,
    epoch: int,
    share: int = 0,
    room: Room | None = None,
) -> Order:
    """Draws the order of an epoch's graphs.

    Args:
        indices: ``[n]`` positions in the store; sorted first, since blocks are adjacent graphs.
        blocks: how they are drawn.
        seed, epoch, share: of the order.
        room: if given, windows swap blocks until each fits, see
            :mod:`staticgraph.epochs.windows`.
    """
    standing = indices if (indices[1:] >= indices[:-1]).all() else np.sort(indices)
    drawn = np.arange(-(-len(indices) // blocks.graphs), dtype=np.int64)
    shuffle(drawn, stream_of(seed, epoch, share, 0))
    if room is not None:
        key = stream_of(seed, epoch, share, 2)
        level(drawn, standing, blocks.graphs, blocks.window, room.sizes, room.most, key)
    order = np.empty_like(standing)
    _mix(standing, drawn, blocks.graphs, blocks.window, order, stream_of(seed, epoch, share, 1))
    lengths = np.minimum(blocks.graphs, len(standing) - drawn * blocks.graphs)
    bounds = np.cumsum(np.append(0, lengths))
    return Order(order, np.append(bounds[:-1][:: blocks.window], len(standing)))


@loop
def _mix(
    standing: IntArray, drawn: IntArray, graphs: int, window: int, order: IntArray, seed: np.uint64
) -> None:
    """Copies block after block, and shuffles each window in place in the order."""
    counter, at = seed, 0
    for first in range(0, len(drawn), window):
        begin = at
        for block in drawn[first : first + window]:
            here = standing[block * graphs : min((block + 1) * graphs, len(standing))]
            order[at : at + len(here)] = here
            at += len(here)
        for i in range(at - begin - 1, 0, -1):
            counter += STEP
            j = below(counter, i + 1)
            order[begin + i], order[begin + j] = order[begin + j], order[begin + i]
