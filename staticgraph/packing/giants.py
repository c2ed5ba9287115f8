"""A bound for packs that hold one very large graph each, and cannot be filled around it.

The problem: where nodes are scarce, the volume bound counts every pack as full of nodes, yet beside
a dense graph that takes nearly all edges no pack can be; and the linear program that knows better
is too large for thousands of sizes. The idea: two graphs of more than half a limit never share a
pack, so each of them loses what cannot be filled beside it, whatever else is there: the room it
leaves, less the most that any graphs put into this room. These losses add to the volume. How many
edges a number of nodes takes at least is a knapsack of one limit, solved once for all of them.

Related: the bounds of Martello and Toth 1990, "Lower bounds and reduction procedures for the bin
packing problem", which pair large items in one component.
"""

from __future__ import annotations

import numba
import numpy as np

from staticgraph.packing.pack import volumes
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray

# Sizes times the scarcest limit: the knapsack takes about a second.
MOST_WORK = 1_000_000_000
NEVER = 1 << 62


def giants_bound(histogram: SizeHistogram, limits: IntArray) -> int:
    """No packing has fewer packs than this; 0 where no size is larger than half a limit.

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
        # With one component only what adds up to a room counts, and takes nothing of any other.
        taken = sizes[:, other] if other != scarce else np.zeros(len(sizes), dtype=np.int64)
        left = room[:, other] if other != scarce else np.zeros(len(sizes), dtype=np.int64)
        filled = np.minimum(filled, _filled(_least(amounts, taken, limit), limit - amounts, left))
    lost = np.maximum(0, limit - amounts - filled) * histogram.counts
    total = int(histogram.totals[scarce]) // unit + max(int(lost[of].sum()) for of in large.T)
    return -(-total // limit)


@numba.njit(nogil=True, cache=True)
def _least(amounts: IntArray, taken: IntArray, limit: int) -> IntArray:
    """``[limit + 1]`` the least that graphs take of one component to make just so much of another,
    :data:`NEVER` where none do."""
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


@numba.njit(nogil=True, cache=True)
def _filled(least: IntArray, room: IntArray, left: IntArray) -> IntArray:
    """``[T]`` the most that fits into each room, with so much left of the other component."""
    most = np.zeros(len(room), np.int64)
    for t in range(len(room)):
        n = room[t]
        while n > 0 and least[n] > left[t]:
            n -= 1
        most[t] = n
    return most
