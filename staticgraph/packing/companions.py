"""Packs for very large graphs, made first and filled completely in the scarce component.

The problem: where nodes are scarce, a dense graph that takes nearly all edges of its pack leaves
room for hundreds of nodes and hardly any edges. A packer that fills by size adds the largest graph
that fits, which takes the last edges, and the room for nodes stays unused; exchanges of one or two
graphs seldom correct this. The idea: pack these giants before all others, the poorest room first,
each with *companions* that have no more edges per node than the room, so that filling can continue.
Where one or two graphs fill the remaining nodes exactly, those with the most edges are taken, so
that the sparse ones are left for the other giants. The rest has no such graphs and is packed as
usual.

The invariant: the packs keep all limits; a pack that is full costs nothing, whatever the others do.
Related: :mod:`staticgraph.packing.giants`, the bound from the space that no companions can fill.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import loop, part
from staticgraph.packing.fill import with_graphs
from staticgraph.packing.pack import Packing, volumes
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray


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
