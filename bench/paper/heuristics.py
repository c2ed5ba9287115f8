"""The paper's packing: histogram bins in the order of a heuristic, each into a suitable pack.

Tuple packing (Krell et al. 2022, "Tuple Packing: Efficient Batching of Small Graphs in Graph Neural
Networks", arXiv 2209.06354) sorts the distinct sizes by a monotone heuristic of their components
and places them one after another: *longest pack first* into the open pack with the least room left
that is large enough (best fit), *shortest pack first* into the one with the most room. The room
left is measured by the same heuristic. This implementation works for any number of components, in
plain Python, as the baseline for :mod:`staticgraph.packing.fill`. It reproduces the code of the
published tables exactly, including a quirk that affects the results; a second one is not copied:

- after some graphs of a size have gone to a pack, the rest of that size consider only packs with
  strictly more room than they need by the heuristic, so a second perfect fit is not found;
- the heuristic printed as ``min`` computes the maximum. Here ``min`` is the minimum; the comparison
  with the printed figures uses ``max`` for it and says so.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.packing.pack import Packing, checked_limits
from staticgraph.sizes.histogram import SizeHistogram

Tuple = tuple[int, ...]
Heuristic = Callable[[Sequence[int]], int]
Fit = Literal["longest", "shortest", "first"]


def _product(size: Sequence[int]) -> int:
    result = 1
    for value in size:
        result *= int(value)
    return result


# The heuristics of section 2.3; ``node`` and ``edge`` are the first two components.
HEURISTICS: dict[str, Heuristic] = {
    "prod": _product,
    "sum": lambda size: int(sum(size)),
    "max": lambda size: int(max(size)),
    "min": lambda size: int(min(size)),
    "node": lambda size: int(size[0]),
    "edge": lambda size: int(size[1]),
}


def weighted(weights: Sequence[int]) -> Heuristic:
    """Returns a heuristic that sums the components with integer weights."""
    return lambda size: int(sum(w * s for w, s in zip(weights, size, strict=True)))


class _Open(NamedTuple):
    """Identical packs that can still take graphs."""

    content: tuple[tuple[int, int], ...]  # (type, copies)
    room: Tuple
    graphs: int
    times: int


def pack_paper(
    histogram: SizeHistogram,
    limits: ArrayLike,
    *,
    heuristic: str | Heuristic = "prod",
    fit: Fit = "longest",
    max_graphs: int | None = None,
) -> Packing:
    """Packs as the paper does.

    Args:
        histogram: the sizes.
        limits: ``[C]`` usable limits.
        heuristic: a name of :data:`HEURISTICS`, or a function of a size.
        fit: ``longest`` pack first (the paper's choice, best fit), ``shortest`` pack first (most
            room left), or the ``first`` opened pack that fits.
        max_graphs: maximum number of graphs per pack; None sets no limit.

    Raises:
        GraphTooLarge: if a single size exceeds a limit.
        ValueError: if there is no heuristic of that name.
    """
    bounds = tuple(checked_limits(histogram, limits, max_graphs).tolist())
    measure, name = _named(heuristic)
    sizes = [tuple(row) for row in histogram.sizes.tolist()]
    order = sorted(range(len(sizes)), key=lambda t: (measure(sizes[t]), sizes[t]), reverse=True)
    board = _Board(measure, bounds, max_graphs, fit)
    for t in order:
        board.place(t, sizes[t], int(histogram.counts[t]))
    return _as_packing(histogram, bounds, max_graphs, board.all_packs(), f"paper {fit} {name}")


def pack_one_component(
    histogram: SizeHistogram, limit: int, *, component: int = 0, max_graphs: int | None = None
) -> Packing:
    """Packs by one component alone, as for sequences (the paper's node base and edge base).

    The other components get the limit that the fullest pack happens to need, which makes this
    baseline poor.
    """
    one = SizeHistogram.from_sizes(histogram.sizes[:, [component]], ("one",))
    merged = np.zeros(len(one.counts), dtype=np.int64)
    row_of = np.searchsorted(one.sizes[:, 0], histogram.sizes[:, component])
    np.add.at(merged, row_of, histogram.counts)
    flat = pack_paper(
        SizeHistogram(one.sizes, merged, ("one",)), [limit], heuristic="sum", max_graphs=max_graphs
    )
    packs = _draw_types(histogram, flat, row_of)
    name = f"{histogram.components[component].removesuffix('s')} base"
    packing = _as_packing(histogram, (0,), max_graphs, packs, name)
    bounds = packing.loads.max(axis=0, initial=0)
    bounds[component] = limit
    return replace(packing, limits=bounds)


def no_packing(histogram: SizeHistogram, limits: ArrayLike) -> Packing:
    """Puts one graph into each pack: the paper's baseline."""
    bounds = checked_limits(histogram, limits, 1)
    num_types = len(histogram.counts)
    return Packing(
        histogram,
        bounds,
        1,
        np.arange(num_types + 1, dtype=np.int64),
        np.arange(num_types, dtype=np.int64),
        np.ones(num_types, dtype=np.int64),
        histogram.counts.copy(),
        method="no packing",
    )


class _Board:
    """The open packs, keyed by the heuristic of their room, and the closed packs."""

    def __init__(self, measure: Heuristic, limits: Tuple, max_graphs: int | None, fit: Fit) -> None:
        self.measure, self.limits, self.max_graphs, self.fit = measure, limits, max_graphs, fit
        self.open: dict[int, list[_Open]] = {}
        self.keys: list[int] = []
        self.closed: list[_Open] = []

    def place(self, t: int, size: Tuple, count: int) -> None:
        """Puts ``count`` graphs of a type into open packs, the rest into new ones."""
        least = need = self.measure(size)
        while count > 0:
            found = self._find(size, least)
            if found is None:
                self._keep(self._with(_Open((), self.limits, 0, count), t, size, count))
                return
            key, index = found
            pack = self.open[key].pop(index)
            taken = min(pack.times, count)
            count -= taken
            grown = self._with(pack, t, size, taken)
            if self.fit == "first":  # in the order of opening, so both keep their position
                rest = [pack._replace(times=pack.times - taken)] if pack.times > taken else []
                self.open[key][index:index] = [grown, *rest]
                continue
            if pack.times > taken:
                self.open[key].append(pack._replace(times=pack.times - taken))
            elif not self.open[key]:
                del self.open[key]
                self.keys.pop(bisect_left(self.keys, key))
            self._keep(grown)
            if self.fit == "longest":
                least = need + 1  # as in the published listing: see the module docstring

    def _find(self, size: Tuple, least: int) -> tuple[int, int] | None:
        """Returns the pack to use: its key and its position in the list of that key."""
        keys = self.keys if self.fit == "first" else self.keys[bisect_left(self.keys, least) :]
        for key in reversed(keys) if self.fit == "shortest" else keys:
            for index, pack in enumerate(self.open[key]):
                if self._full(pack):
                    continue
                if all(r >= s for r, s in zip(pack.room, size, strict=True)):
                    return key, index
        return None

    def _with(self, pack: _Open, t: int, size: Tuple, count: int) -> _Open:
        """Returns ``count`` packs with this content and one more graph."""
        content = dict(pack.content)
        content[t] = content.get(t, 0) + 1
        room = tuple(r - s for r, s in zip(pack.room, size, strict=True))
        return _Open(tuple(content.items()), room, pack.graphs + 1, count)

    def _keep(self, pack: _Open) -> None:
        """Adds a pack to the open packs, or closes it if it is full."""
        key = 0 if self.fit == "first" else self.measure(pack.room)
        if self._full(pack) or (self.fit != "first" and key == 0):
            self.closed.append(pack)
            return
        if key not in self.open:
            insort(self.keys, key)
            self.open[key] = []
        self.open[key].append(pack)

    def _full(self, pack: _Open) -> bool:
        return self.max_graphs is not None and pack.graphs >= self.max_graphs

    def all_packs(self) -> list[_Open]:
        return [*self.closed, *(pack for packs in self.open.values() for pack in packs)]


def _named(heuristic: str | Heuristic) -> tuple[Heuristic, str]:
    if callable(heuristic):
        return heuristic, getattr(heuristic, "__name__", "heuristic")
    if heuristic not in HEURISTICS:
        raise ValueError(f"no heuristic {heuristic!r}; choose one of {', '.join(HEURISTICS)}")
    return HEURISTICS[heuristic], heuristic


def _draw_types(histogram: SizeHistogram, flat: Packing, row_of: np.ndarray) -> list[_Open]:
    """Returns packs of one component with full sizes drawn in the order of the histogram."""
    queues = [np.flatnonzero(row_of == row).tolist() for row in range(len(flat.histogram.counts))]
    left = histogram.counts.tolist()
    packs = []
    for p, times in enumerate(flat.counts.tolist()):
        entry = slice(flat.starts[p], flat.starts[p + 1])
        wanted = list(zip(flat.types[entry].tolist(), flat.copies[entry].tolist(), strict=True))
        while times:
            heads = [(queues[row][0], copies) for row, copies in wanted]
            repeats = min(times, *(left[t] // copies for t, copies in heads))
            content = dict(heads) if repeats else {}
            if not repeats:  # a size is exhausted within this pack
                repeats = 1
                for row, copies in wanted:
                    rest = copies
                    for t in queues[row]:
                        content[t] = min(rest, left[t])
                        rest -= content[t]
                        if not rest:
                            break
            for t, copies in content.items():
                left[t] -= repeats * copies
            for row, _ in wanted:
                while queues[row] and not left[queues[row][0]]:
                    queues[row].pop(0)
            times -= repeats
            packs.append(_Open(tuple(content.items()), (), 0, repeats))
    return packs


def _as_packing(
    histogram: SizeHistogram,
    limits: Tuple,
    max_graphs: int | None,
    packs: list[_Open],
    method: str,
) -> Packing:
    """Returns the packs as a :class:`~staticgraph.packing.pack.Packing`."""
    starts = np.cumsum([0, *(len(pack.content) for pack in packs)]).astype(np.int64)
    entries = [entry for pack in packs for entry in pack.content]
    table = np.array(entries, dtype=np.int64).reshape(-1, 2)
    return Packing(
        histogram,
        np.array(limits, dtype=np.int64),
        max_graphs,
        starts,
        np.ascontiguousarray(table[:, 0]),
        np.ascontiguousarray(table[:, 1]),
        np.array([pack.times for pack in packs], dtype=np.int64),
        method,
    )
