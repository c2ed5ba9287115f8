"""Inputs for tests of packers: drawn and published histograms, and the minimum number of packs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from staticgraph.packing.packing_result import Packing
from staticgraph.sizes.histogram import SizeHistogram

DATA = Path(__file__).parents[1] / "data" / "histograms"


SETS = sorted(path.stem for path in DATA.glob("*.csv"))


def load(name: str) -> SizeHistogram:
    return SizeHistogram.from_csv(DATA / f"{name}.csv")


def alike(name: str, graphs: int, seed: int = 0) -> SizeHistogram:
    """Generates molecules like QM9 with hydrogens or ZINC, whose histograms are not available.

    Nodes and rings are drawn from rounded normal distributions with about their means.
    """
    mean, spread, least, most, rings = {
        "qm9": (18.03, 2.95, 3, 29, 1.63),
        "zinc": (23.15, 4.5, 6, 38, 2.75),
    }[name]
    rng = np.random.default_rng(seed)
    nodes = np.clip(np.rint(rng.normal(mean, spread, graphs)), least, most)
    cycles = np.clip(np.rint(rng.normal(rings, 1.0, graphs)), 0, 9)
    return SizeHistogram.from_sizes(np.stack([nodes, 2 * (nodes + cycles - 1)], 1).astype(np.int64))


@st.composite
def problems(draw, max_types: int = 12, max_count: int = 6):
    """Draws a histogram of one to three components, limits that fit it, and a limit on graphs."""
    width = draw(st.integers(1, 3))
    rows = draw(
        st.lists(
            st.tuples(*[st.integers(0, 12)] * width), min_size=1, max_size=max_types, unique=True
        )
    )
    counts = draw(st.lists(st.integers(1, max_count), min_size=len(rows), max_size=len(rows)))
    order = sorted(range(len(rows)), key=lambda i: rows[i])
    histogram = SizeHistogram(
        np.array([rows[i] for i in order], dtype=np.int64),
        np.array([counts[i] for i in order], dtype=np.int64),
        ("nodes", "edges", "triplets")[:width],
    )
    extra = draw(st.tuples(*[st.integers(0, 25)] * width))
    limits = histogram.maxima + np.array(extra)
    max_graphs = draw(st.none() | st.integers(1, 9))
    return histogram, limits, max_graphs


def assert_packed(
    packing: Packing, histogram: SizeHistogram, limits: ArrayLike, max_graphs: int | None = None
) -> None:
    """Asserts that every graph is packed once and no pack exceeds the limits.

    Loops over the patterns of the packs and uses the packer's own inputs, since the packing might
    have recorded different ones.
    """
    placed = [0] * len(histogram.counts)
    most = np.asarray(limits).tolist()
    for pattern, times in enumerate(packing.counts.tolist()):
        first, end = packing.starts[pattern : pattern + 2].tolist()
        graphs, load = 0, [0] * len(most)
        for row, copies in zip(
            packing.types[first:end].tolist(), packing.copies[first:end].tolist(), strict=True
        ):
            assert copies > 0
            placed[row] += copies * times
            graphs += copies
            size = histogram.sizes[row].tolist()
            load = [a + copies * b for a, b in zip(load, size, strict=True)]
        assert all(a <= b for a, b in zip(load, most, strict=True)), (load, most)
        assert max_graphs is None or graphs <= max_graphs, (graphs, max_graphs)
    assert placed == histogram.counts.tolist(), "missing, or packed twice"


def fewest_packs(histogram: SizeHistogram, limits: np.ndarray, max_graphs: int | None) -> int:
    """Returns the true minimum by exhaustive search over all placements; for a few graphs."""
    items = np.repeat(histogram.sizes, histogram.counts, axis=0)[::-1].tolist()
    most = max_graphs or len(items)
    best = len(items)

    def put(index: int, packs: list[list[int]], counts: list[int]) -> None:
        nonlocal best
        if len(packs) >= best:
            return
        if index == len(items):
            best = len(packs)
            return
        for load, number in list(zip(packs, range(len(packs)), strict=True)):
            after = [a + b for a, b in zip(load, items[index], strict=True)]
            if counts[number] < most and all(a <= b for a, b in zip(after, limits, strict=True)):
                packs[number] = after
                counts[number] += 1
                put(index + 1, packs, counts)
                packs[number] = load
                counts[number] -= 1
        packs.append(items[index])
        counts.append(1)
        put(index + 1, packs, counts)
        packs.pop()
        counts.pop()

    put(0, [], [])
    return best
