"""A random order that reads a disk in stretches: blocks of graphs, a few of them mixed at a time.

The problem: an epoch in random order over a store larger than memory reads a page for each graph.
The idea: graphs that stand together are a *block*; blocks come in random order, and the graphs of a
*window* of blocks are shuffled together. What is read is whole blocks, each once an epoch, and a
window of them is all that must be in memory.

The bias: two graphs of one block meet in a batch more often than two of different blocks. In a
store whose graphs stand in no order that is nothing. Where they are sorted, by label say, a batch's
mean label varies as if it were drawn from one window: its variance is that of a random batch times
``1 + rho * b / w`` (:func:`spread`), with ``b`` graphs per batch, ``w`` a window, and ``rho``
the share of the label's variance that lies between blocks: 1 where each block has one label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from staticgraph.epochs.windows import level
from staticgraph.packing.random import STEP, below, shuffle, stream_of
from staticgraph.sizes.whole_numbers import IntArray

# Grows whenever the same seed gives another order, so that no epoch goes on in another one.
ORDER_VERSION = 2


@dataclass(frozen=True, slots=True)
class Blocks:
    """How an order in blocks is drawn.

    Attributes:
        graphs: of a block; of molecules 2,048 are about two megabytes.
        window: blocks that are mixed.

    Raises:
        ValueError: one of them is below 1.
    """

    graphs: int = 2048
    window: int = 64

    def __post_init__(self) -> None:
        if self.graphs < 1 or self.window < 1:
            raise ValueError(f"{self} must have graphs and a window of at least 1")

    @property
    def mixed(self) -> int:
        """Graphs of a window."""
        return self.graphs * self.window


class Order(NamedTuple):
    """The graphs of an epoch.

    Attributes:
        graphs: ``[n]`` their positions, window by window, of the dtype that they were given in.
        bounds: ``[W + 1]`` where each window begins and ends among them.
    """

    graphs: IntArray
    bounds: IntArray


class Room(NamedTuple):
    """What a window should fit.

    Attributes:
        sizes: ``[., C]`` of every graph of the store.
        most: ``[C]`` what a bucket holds a graph of an exact batch.
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
    """The graphs of an epoch.

    Args:
        indices: ``[n]`` positions in the store; sorted first, as blocks are what stands together.
        blocks: how they are drawn.
        seed, epoch, share: of the order.
        room: windows swap blocks until each fits, see :mod:`staticgraph.epochs.windows`.
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


def spread(share_between: float, batch_size: int, blocks: Blocks) -> float:
    """How many times the variance of a batch's mean is that of a random batch.

    Args:
        share_between: of the variance that lies between blocks, 0 to 1.
        batch_size: graphs per batch.
        blocks: how the order is drawn.
    """
    return 1.0 + share_between * (batch_size - 1) / blocks.window


@numba.njit(nogil=True, cache=True)
def _mix(
    standing: IntArray, drawn: IntArray, graphs: int, window: int, order: IntArray, seed: np.uint64
) -> None:
    """Copies block after block, and shuffles each window where it stands in the order."""
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
