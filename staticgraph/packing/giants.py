"""Very large graphs that leave room nothing can fill: a bound, and packs made for them first.

The problem: where nodes are scarce, the volume bound counts every pack as full of nodes, yet a pack
with a dense graph that takes nearly all edges cannot be filled; and the linear program that would
account for this is too large for thousands of sizes. The idea: two graphs of more than half a limit
never share a pack, so each of them loses the space that cannot be filled next to it, whatever the
other graphs are: the room it leaves, less the most that any graphs could fill in this room. These
losses add to the volume. The fewest edges that a number of nodes can have is a knapsack with one
limit, solved once for all of them.

Where nodes are scarce, a dense graph that takes nearly all edges of its pack leaves room for
hundreds of nodes and hardly any edges. A packer that fills by size adds the largest graph that
fits, which takes the last edges, and exchanges of one or two graphs seldom correct this. So
:func:`packed_giants` packs these giants before all others, the poorest room first, each with
*companions*, the largest that have no more edges per node than the room, so that filling can
continue. The rest has no such graphs and is packed as usual.

Related: the bounds of Martello and Toth 1990, "Lower bounds and reduction procedures for the bin
packing problem", which pair large items in one component.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import loop
from staticgraph.packing.packing_result import Packing, volumes, with_graphs
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


def packed_giants(
    histogram: SizeHistogram, limits: IntArray, max_graphs: int | None
) -> tuple[Packing, IntArray]:
    """Packs the giants with poor rooms; also returns ``[T]`` the remaining graphs of each size.

    A giant has more than half of the second scarcest limit; its room is poor where it has less of
    that component, per unit of the scarcest one, than the other graphs have on average.

    Args:
        histogram: the sizes.
        limits: ``[C]`` usable limits.
        max_graphs: how many graphs a pack may hold; no limit where None.
    """
    giants, scarce, second = _giants(histogram, limits)
    sizes, bounds = with_graphs(histogram, limits, max_graphs)
    # The largest last, so that it is the last of those that fit.
    order = np.lexsort((sizes[:, second], sizes[:, scarce]))
    sizes, left = sizes[order], histogram.counts[order]
    density = sizes[:, second] / np.maximum(sizes[:, scarce], 1e-9)
    starts, types, copies, counts = [0], [], [], []
    for giant in np.argsort(order)[giants]:
        while left[giant]:
            held, room, row = np.zeros_like(left), bounds, giant
            while row is not None:
                held[row] += 1
                room = room - sizes[row]
                fit = np.flatnonzero((left > held) & (sizes <= room).all(axis=1))
                fit = fit[sizes[fit, scarce] > 0]
                sparse = fit[density[fit] * room[scarce] <= room[second]]
                row = sparse[-1] if len(sparse) else min(fit, key=density.item, default=None)
            pattern = np.flatnonzero(held)
            times = int((left[pattern] // held[pattern]).min())
            left -= times * held
            types.append(order[pattern])
            copies.append(held[pattern])
            counts.append(times)
            starts.append(starts[-1] + len(pattern))
    none, remaining = np.zeros(0, np.int64), np.empty_like(left)
    remaining[order] = left
    packs = np.array(starts), np.concatenate([none, *types]), np.concatenate([none, *copies])
    packing = Packing(
        histogram, limits, max_graphs, *packs, np.array(counts, np.int64), "companions"
    )
    return packing, remaining


def _giants(histogram: SizeHistogram, limits: IntArray) -> tuple[IntArray, int, int]:
    """Rows of the giants, the poorest room first, and the scarcest two components."""
    sizes = histogram.sizes
    if sizes.shape[1] < 2:
        return np.zeros(0, np.int64), 0, 0
    scarce, second = np.argsort(-volumes(histogram, limits), kind="stable")[:2].tolist()
    large = 2 * sizes[:, second] > limits[second]
    others = histogram.counts[~large] @ sizes[~large][:, [scarce, second]]
    room = limits - sizes
    poverty = room[:, scarce] * float(others[1]) - room[:, second] * float(others[0])
    rows = np.flatnonzero(large & (poverty > 0))
    richness = room[rows, second] / room[rows, scarce]
    return rows[np.argsort(richness, kind="stable")], scarce, second
