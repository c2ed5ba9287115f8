"""Packing a stream: each graph goes to the open pack that it fills best, in order of arrival.

The problem: in prediction, and wherever batches may hold a varying number of graphs, the graphs
come in an order that must not be sorted (sorting puts small graphs together, which biases training
and delays results), and there are tens of millions of them. The idea: keep a few packs open; a
graph joins the open pack that it leaves with the least room, each component measured as a share of
its limit; if it fits none, a new pack is opened, and if all places are taken the fullest pack is
closed to make room. With one open pack this is next-fit, with as many as there are graphs it is
best-fit.

The invariant: no pack exceeds a limit in any component, nor the limit on graphs, and every graph
that fits a pack by itself is in exactly one. Packs are numbered in the order in which they were
opened.

Source: best-fit with bounded space is classic (Csirik and Johnson 2001, "Bounded space on-line bin
packing: best is better than first"); here with several components, as in tuple packing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.errors import GraphTooLarge
from staticgraph.jit import loop, part
from staticgraph.sizes.whole_numbers import IntArray

NO_LIMIT = np.iinfo(np.int64).max


def pack_stream(
    sizes: ArrayLike,
    limits: ArrayLike,
    *,
    window: int = 8,
    max_graphs: int | None = None,
    order: ArrayLike | None = None,
) -> IntArray:
    """Assigns each graph to a pack.

    Args:
        sizes: ``[n, C]`` whole numbers, the components of each graph.
        limits: ``[C]``, the most that a pack may hold of each. These are usable limits: a
            :class:`~staticgraph.sizes.capacity.Capacity` has one node and one graph more.
        window: how many packs are open at a time.
        max_graphs: how many graphs a pack may hold; no limit where None.
        order: ``[m]`` positions in ``sizes``, in order of arrival; all, in the order of
            ``sizes``, where None.

    Returns:
        ``[m]`` int64, the pack of each graph in the order of arrival, numbered from 0 without gaps.

    Raises:
        GraphTooLarge: a single graph exceeds a limit; the message names it.
        ValueError: the shapes do not match, or ``window`` or ``max_graphs`` is below 1.
    """
    rows = np.ascontiguousarray(sizes, dtype=np.int64)
    bounds = np.ascontiguousarray(limits, dtype=np.int64)
    if rows.ndim != 2 or rows.shape[1] != len(bounds):
        raise ValueError(f"sizes has shape {rows.shape}, expected [n, {len(bounds)}] as the limits")
    if window < 1 or (max_graphs is not None and max_graphs < 1):
        raise ValueError(f"window={window} and max_graphs={max_graphs} must be at least 1")
    arrivals = (
        np.arange(len(rows), dtype=np.int64)
        if order is None
        else np.ascontiguousarray(order, dtype=np.int64)
    )
    window = min(window, max(1, len(arrivals)))
    packs, failed = stream_kernel(
        rows, arrivals, bounds, NO_LIMIT if max_graphs is None else max_graphs, window
    )
    if failed >= 0:
        item = int(arrivals[failed])
        raise GraphTooLarge(
            f"graph {item} has size {tuple(rows[item].tolist())}; a pack holds at most "
            f"{tuple(bounds.tolist())}: raise the limits, or leave the graph out"
        )
    return packs


@loop
def stream_kernel(
    sizes: IntArray, order: IntArray, limits: IntArray, max_graphs: int, window: int
) -> tuple[IntArray, int]:
    """The loop of :func:`pack_stream`: packs, and the arrival that fits no pack, or -1."""
    width = len(limits)
    packs = np.empty(len(order), np.int64)
    room = np.zeros((window, width), np.int64)
    slots = np.zeros(window, np.int64)
    number = np.zeros(window, np.int64)
    share = np.empty(width, np.float64)
    for c in range(width):
        share[c] = 1.0 / max(1, limits[c])
    opened = 0
    used = 0
    for k in range(len(order)):
        item = order[k]
        best = -1
        least = np.inf
        for p in range(used):
            if slots[p] == 0:
                continue
            left = 0.0
            for c in range(width):
                rest = room[p, c] - sizes[item, c]
                if rest < 0:
                    left = np.inf
                    break
                left += rest * share[c]
            if left < least:
                least = left
                best = p
        if best < 0:
            for c in range(width):
                if sizes[item, c] > limits[c]:
                    return packs, k
            if used < window:
                best = used
                used += 1
            else:
                best = _fullest(room, slots, share)
            for c in range(width):
                room[best, c] = limits[c]
            slots[best] = max_graphs
            number[best] = opened
            opened += 1
        for c in range(width):
            room[best, c] -= sizes[item, c]
        slots[best] -= 1
        packs[k] = number[best]
    return packs, -1


@part
def _fullest(room: IntArray, slots: IntArray, share: np.ndarray) -> int:
    """The open pack with the least room in its fullest component, or one without a free slot."""
    best = 0
    least = np.inf
    for p in range(len(slots)):
        if slots[p] == 0:
            return p
        left = np.inf
        for c in range(room.shape[1]):
            left = min(left, room[p, c] * share[c])
        if left < least:
            least = left
            best = p
    return best
