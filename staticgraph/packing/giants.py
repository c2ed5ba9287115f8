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
*companions* that have no more edges per node than the room, so that filling can continue. Where one
or two graphs fill the remaining nodes exactly, those with the most edges are taken, so that the
sparse ones are left for the other giants. The rest has no such graphs and is packed as usual.

Related: the bounds of Martello and Toth 1990, "Lower bounds and reduction procedures for the bin
packing problem", which pair large items in one component.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import loop, part
from staticgraph.packing.pack import Packing, volumes, with_graphs
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
    left = histogram.counts.copy()
    packs = np.zeros(1, np.int64), *(np.zeros(0, np.int64) for _ in range(3))
    giants, scarce, second = _giants(histogram, limits)
    if len(giants):
        sizes, bounds = with_graphs(histogram, limits, max_graphs)
        order = np.lexsort((sizes[:, second], sizes[:, scarce]))
        packs = _fill_beside(giants, sizes, left, bounds, order, scarce, second)
    return Packing(histogram, limits, max_graphs, *packs, method="companions"), left


def _giants(histogram: SizeHistogram, limits: IntArray) -> tuple[IntArray, int, int]:
    """Rows of the giants, the poorest room first, and the scarcest two components."""
    sizes, none = histogram.sizes, np.zeros(0, np.int64)
    if sizes.shape[1] < 2:
        return none, 0, 0
    scarce, second = np.argsort(-volumes(histogram, limits), kind="stable")[:2].tolist()
    large = 2 * sizes[:, second] > limits[second]
    others = histogram.counts[~large] @ sizes[~large][:, [scarce, second]]
    if not large.any() or not others.any():
        return none, scarce, second
    room = limits - sizes
    poverty = room[:, scarce] * float(others[1]) - room[:, second] * float(others[0])
    rows = np.flatnonzero(large & (poverty > 0))
    richness = room[rows, second] / room[rows, scarce]
    return rows[np.argsort(richness, kind="stable")], scarce, second


@loop
def _fill_beside(
    giants: IntArray,
    sizes: IntArray,
    left: IntArray,
    limits: IntArray,
    order: IntArray,
    scarce: int,
    second: int,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Makes patterns ``(starts, types, copies, counts)``; ``left`` becomes the remaining graphs.

    ``order`` lists the types by ascending amount of the scarcest component, then of the second.
    """
    amounts = sizes[order, scarce]
    used = np.zeros(len(sizes), np.int64)
    starts = [0]
    types = [0 for _ in range(0)]
    copies = [0 for _ in range(0)]
    for giant in giants:
        while left[giant] > 0:
            room = limits.copy()
            taken = giant
            other = -1
            while taken >= 0:
                for t in (taken, other):
                    if t >= 0:
                        if used[t] == 0:
                            types.append(t)
                        used[t] += 1
                        left[t] -= 1
                        for c in range(len(room)):
                            room[c] -= sizes[t, c]
                taken, other = _just_so(sizes, left, room, order, amounts, scarce, second)
                if taken < 0:
                    taken = _companion(sizes, left, room, scarce, second)
            for q in range(starts[-1], len(types)):
                copies.append(used[types[q]])
                used[types[q]] = 0
            starts.append(len(types))
    return np.array(starts), np.array(types), np.array(copies), np.ones(len(starts) - 1, np.int64)


@part
def _fits(size: IntArray, room: IntArray) -> bool:
    fits = True
    for c in range(len(room)):
        fits = fits and size[c] <= room[c]
    return fits


@part
def _companion(sizes: IntArray, left: IntArray, room: IntArray, scarce: int, second: int) -> int:
    """The largest type that is no denser than the room, else the least dense that fits, or -1."""
    best, sparse = -1, False
    for t in range(len(sizes)):
        if left[t] == 0 or sizes[t, scarce] == 0 or not _fits(sizes[t], room):
            continue
        a, b = sizes[t, scarce], sizes[t, second]
        within = b * room[scarce] <= room[second] * a
        if best < 0 or (within and not sparse):
            best, sparse = t, within
        elif within == sparse:
            mine, other = sizes[best, scarce], sizes[best, second]
            if (a, b) > (mine, other) if within else b * mine < other * a:
                best = t
    return best


@part
def _just_so(
    sizes: IntArray,
    left: IntArray,
    room: IntArray,
    order: IntArray,
    amounts: IntArray,
    scarce: int,
    second: int,
) -> tuple[int, int]:
    """One or two types that use up the scarcest component exactly and the most of the second; -1
    where no types do."""
    first, other, most = -1, -1, -1
    after = np.empty_like(room)
    for i in range(-1, len(order)):
        a = -1 if i < 0 else order[i]
        need = room[scarce]
        for c in range(len(room)):
            after[c] = room[c]
        if a >= 0:
            need -= amounts[i]
            if need < amounts[i]:
                break
            if left[a] == 0 or amounts[i] == 0 or not _fits(sizes[a], room):
                continue
            for c in range(len(room)):
                after[c] -= sizes[a, c]
        if need <= 0:
            continue
        j = np.searchsorted(amounts, need, side="right") - 1
        while j >= 0 and amounts[j] == need:
            b = order[j]
            j -= 1
            if left[b] < (2 if a == b else 1) or not _fits(sizes[b], after):
                continue
            value = sizes[b, second] + (sizes[a, second] if a >= 0 else 0)
            if value > most:
                first, other, most = int(b), int(a), value
            break
    return first, other
