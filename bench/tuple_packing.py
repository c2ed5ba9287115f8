"""The published packing in plain Python: histogram bins in the order of a heuristic.

Tuple packing (Krell et al. 2022, "Tuple Packing: Efficient Batching of Small Graphs in Graph Neural
Networks", arXiv 2209.06354) sorts the distinct sizes by a monotone heuristic of their components
and places them one after another, *longest pack first*: into the open pack with the least room left
that is large enough, measured by the same heuristic. It reproduces the published code, including a
quirk: after some graphs of a size have gone to a pack, the rest of that size consider only packs
with strictly more room than they need, so a second perfect fit is not found. The heuristic printed
as ``min`` computes the maximum there; here it is the minimum.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.packing.pack import Packing, checked_limits
from staticgraph.sizes.histogram import SizeHistogram

Tuple = tuple[int, ...]

# The heuristics of section 2.3; ``node`` and ``edge`` are the first two components.
HEURISTICS: dict[str, Callable[[Sequence[int]], int]] = {
    "prod": prod,
    "sum": sum,
    "max": max,
    "min": min,
    "node": lambda size: size[0],
    "edge": lambda size: size[1],
}


class Pack(NamedTuple):
    """Identical packs: pairs of type and copies, the room left, and how many packs."""

    content: tuple[tuple[int, int], ...]
    room: Tuple
    graphs: int
    times: int


def pack_paper(
    histogram: SizeHistogram, limits: ArrayLike, *, heuristic: str, max_graphs: int | None = None
) -> Packing:
    """Packs as the paper does, with a heuristic of :data:`HEURISTICS`."""
    bounds = tuple(checked_limits(histogram, limits, max_graphs).tolist())
    measure = HEURISTICS[heuristic]
    sizes = [tuple(row) for row in histogram.sizes.tolist()]
    order = sorted(range(len(sizes)), key=lambda t: (measure(sizes[t]), sizes[t]), reverse=True)
    open_packs: dict[int, list[Pack]] = {}
    keys: list[int] = []  # those of open_packs, ascending
    closed: list[Pack] = []

    def is_full(pack: Pack) -> bool:
        return max_graphs is not None and pack.graphs >= max_graphs

    def insert(pack: Pack) -> None:
        key = measure(pack.room)
        if is_full(pack) or key == 0:
            closed.append(pack)
            return
        if key not in open_packs:
            insort(keys, key)
            open_packs[key] = []
        open_packs[key].append(pack)

    def find(size: Tuple, least: int) -> tuple[int, int] | None:
        for key in keys[bisect_left(keys, least) :]:
            for index, pack in enumerate(open_packs[key]):
                if not is_full(pack) and all(r >= s for r, s in zip(pack.room, size, strict=True)):
                    return key, index
        return None

    for t in order:
        size, count = sizes[t], int(histogram.counts[t])
        least = measure(size)
        while count > 0:
            place = find(size, least)
            if place is None:
                insert(with_graph(Pack((), bounds, 0, count), t, size, count))
                break
            key, index = place
            pack = open_packs[key].pop(index)
            times = min(pack.times, count)
            count -= times
            if pack.times > times:
                open_packs[key].append(pack._replace(times=pack.times - times))
            elif not open_packs[key]:
                del open_packs[key]
                keys.remove(key)
            insert(with_graph(pack, t, size, times))
            least = measure(size) + 1  # the quirk
    packs = [*closed, *(pack for some in open_packs.values() for pack in some)]
    starts = np.cumsum([0, *(len(pack.content) for pack in packs)]).astype(np.int64)
    entries = np.array([e for pack in packs for e in pack.content], dtype=np.int64).reshape(-1, 2)
    return Packing(
        histogram,
        np.array(bounds, dtype=np.int64),
        max_graphs,
        starts,
        np.ascontiguousarray(entries[:, 0]),
        np.ascontiguousarray(entries[:, 1]),
        np.array([pack.times for pack in packs], dtype=np.int64),
        f"paper {heuristic}",
    )


def with_graph(pack: Pack, t: int, size: Tuple, times: int) -> Pack:
    """Returns ``times`` packs with this content and one more graph of a type."""
    content = dict(pack.content)
    content[t] = content.get(t, 0) + 1
    room = tuple(r - s for r, s in zip(pack.room, size, strict=True))
    return Pack(tuple(content.items()), room, pack.graphs + 1, times)
