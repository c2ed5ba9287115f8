"""A bound for packs with one very large graph each that cannot be filled completely.

The problem: where nodes are scarce, the volume bound counts every pack as full of nodes, yet a pack
with a dense graph that takes nearly all edges cannot be filled; and the linear program that would
account for this is too large for thousands of sizes. The idea: two graphs of more than half a limit
never share a pack, so each of them loses the space that cannot be filled next to it, whatever the
other graphs are: the room it leaves, less the most that any graphs could fill in this room. These
losses add to the volume. The fewest edges that a number of nodes can have is a knapsack with one
limit, solved once for all of them.

Related: the bounds of Martello and Toth 1990, "Lower bounds and reduction procedures for the bin
packing problem", which pair large items in one component.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import loop
from staticgraph.packing.pack import volumes
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray

# The most sizes times the scarcest limit: the knapsack then takes about a second.
MOST_WORK = 1_000_000_000
NEVER = 1 << 62


def giants_bound(histogram: SizeHistogram, limits: IntArray) -> int:
    """A lower bound on the number of packs; 0 where no size is larger than half a limit.

    Args:
        histogram: the sizes.
        limits: ``[C]`` usable limits.
    """
    sizes = histogram.sizes
    scarce = int(np.argmax(volumes(histogram, limits)))
    large = 2 * sizes > limits
    unit = max(1, int(np.gcd.reduce(sizes[:, scarce])))
    limit = int(limits[scarce]) // unit
    if not large.any() or limit < 1 or limit * len(sizes) > MOST_WORK:
        return 0
    amounts = sizes[:, scarce] // unit
    room = limits - sizes
    filled = np.full(len(sizes), limit)
    for other in range(len(limits)):
        # For the scarce component itself only reachable sums count; nothing else is taken.
        taken = sizes[:, other] if other != scarce else np.zeros(len(sizes), dtype=np.int64)
        left = room[:, other] if other != scarce else np.zeros(len(sizes), dtype=np.int64)
        filled = np.minimum(filled, _filled(_least(amounts, taken, limit), limit - amounts, left))
    lost = np.maximum(0, limit - amounts - filled) * histogram.counts
    total = int(histogram.totals[scarce]) // unit + max(int(lost[of].sum()) for of in large.T)
    return -(-total // limit)


@loop
def _least(amounts: IntArray, taken: IntArray, limit: int) -> IntArray:
    """``[limit + 1]`` the least of one component among graphs that sum to an exact amount of
    another, :data:`NEVER` where none do."""
    least = np.full(limit + 1, NEVER, np.int64)
    least[0] = 0
    for t in range(len(amounts)):
        a, b = amounts[t], taken[t]
        if a == 0:
            continue
        for n in range(a, limit + 1):
            if least[n - a] < NEVER:
                least[n] = min(least[n], least[n - a] + b)
    return least


@loop
def _filled(least: IntArray, room: IntArray, left: IntArray) -> IntArray:
    """``[T]`` the most that fits into each room, given what is left of the other component."""
    most = np.zeros(len(room), np.int64)
    for t in range(len(room)):
        n = room[t]
        while n > 0 and least[n] > left[t]:
            n -= 1
        most[t] = n
    return most
