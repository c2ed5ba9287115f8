"""Very many distinct sizes are rounded up to a few thousand: no graph is lost, no limit is
exceeded, and the work is bounded by counting it, not by a clock."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples

import staticgraph as sg
from staticgraph.packing import coarse as coarse_module
from staticgraph.packing import fill
from staticgraph.packing.coarse import MOST_SIZES, coarsened
from staticgraph.packing.draw import draw_packs, types_of
from staticgraph.packing.fill import QUICK, fill_histogram
from staticgraph.plans import several
from staticgraph.plans.cost import StepCost
from staticgraph.plans.limits import efficiency_map, limits_for_efficiency, limits_for_graphs
from staticgraph.plans.margin import stream_limits
from staticgraph.sizes.capacity import GraphSize
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import distinct_rows


def spread(count: int, seed: int = 0, columns: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 5000, (count, columns))


FEW = 400


@pytest.fixture
def many(monkeypatch) -> SizeHistogram:
    """Ten times as many distinct sizes as are packed without rounding."""
    monkeypatch.setattr(coarse_module, "MOST_SIZES", FEW)
    return SizeHistogram.from_sizes(spread(10 * FEW))


def test_few_sizes_are_left_as_they_are():
    histogram = SizeHistogram.from_sizes(np.stack([np.arange(1, MOST_SIZES + 1)] * 2, axis=1))
    found = coarsened(histogram)
    assert found.histogram is histogram
    assert (found.step, found.loss) == (0.0, 0.0)
    packing = fill_histogram(histogram, (9000, 9000), efforts=QUICK)
    assert packing.histogram is histogram
    assert "rounded" not in packing.method


@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 10**6), st.integers(0, 3)),
        min_size=1,
        max_size=60,
    ),
    counts=st.randoms(use_true_random=False),
    most=st.integers(1, 12),
)
@examples(100)
def test_boxes_hold_their_members_and_every_graph_has_one(sizes, counts, most):
    rows = np.array(sorted(set(sizes)), np.int64)
    many = np.array([counts.randint(1, 9) for _ in rows], np.int64)
    histogram = SizeHistogram(rows, many, ("nodes", "edges", "triplets"))
    found = coarsened(histogram, most)
    rounded = found.histogram
    assert len(rounded.counts) <= most
    assert (rounded.sizes[found.box] >= histogram.sizes).all()
    assert (rounded.maxima == histogram.maxima).all(), "no size grows beyond the largest"
    held = np.zeros_like(rounded.counts)
    np.add.at(held, found.box, histogram.counts)
    np.testing.assert_array_equal(held, rounded.counts)
    lexicographic = np.lexsort(rounded.sizes.T[::-1])
    np.testing.assert_array_equal(lexicographic, np.arange(len(lexicographic)))
    assert found.loss <= 2 * np.expm1(found.step) + 1e-9


@given(
    sizes=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 90)), min_size=2, max_size=40),
    counts=st.randoms(use_true_random=False),
    graphs=st.integers(1, 20),
)
@examples(60)
def test_a_packing_of_boxes_is_one_of_the_graphs(sizes, counts, graphs):
    rows = np.array(sorted(set(sizes)), np.int64)
    many = np.array([counts.randint(1, 30) for _ in rows], np.int64)
    histogram = SizeHistogram(rows, many)
    found = coarsened(histogram, 3)
    packing = fill_histogram(found.histogram, (80, 120), max_graphs=graphs, efforts=QUICK)
    expanded = found.expanded(packing)
    expanded.check()
    assert expanded.histogram is histogram
    assert expanded.num_packs == packing.num_packs
    assert found.filled(packing) == pytest.approx(expanded.harmonic_mean)


def test_many_sizes_pack_within_the_stated_loss(many):
    packing = fill_histogram(many, (40_000, 40_000), max_graphs=64, efforts=QUICK)
    packing.check()
    loss = coarsened(many).loss
    assert 0 < loss < 0.06
    assert packing.num_packs <= packing.volume_bound * (1 + loss) * 1.02
    assert f"rounded up by {loss:.2%}" in packing.method
    sizes = np.repeat(many.sizes, many.counts, axis=0)
    order, bounds = draw_packs(packing, types_of(packing, sizes), epoch=3)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(sizes)))
    assert (np.add.reduceat(sizes[order], bounds[:-1]) <= 40_000).all()


@pytest.mark.parametrize("columns", [2, 3])
def test_a_hundred_thousand_sizes_lose_little(columns):
    even = coarsened(SizeHistogram.from_sizes(spread(100_000)))
    assert 0 < even.loss < 0.015
    # Sizes with a heavy tail.
    rng = np.random.default_rng(0)
    sizes = (rng.lognormal(3, 1.5, (50_000, columns)) * 10).astype(np.int64)
    found = coarsened(SizeHistogram.from_sizes(sizes, ("nodes", "edges", "rows")[:columns]))
    assert len(found.histogram.counts) <= MOST_SIZES
    assert found.loss < (0.03 if columns == 2 else 0.2)


def test_the_packer_never_sees_more_sizes_than_that(many, monkeypatch):
    """The work grows with the square of the number of sizes, so that number must be bounded."""
    seen = []
    inner = fill._fill
    monkeypatch.setattr(
        fill, "_fill", lambda sizes, *rest: seen.append(len(sizes)) or inner(sizes, *rest)
    )
    fill_histogram(many, (40_000, 40_000), efforts=QUICK)
    efficiency_map(many, [20_000], [20_000])
    limits_for_graphs(many, 3, efforts=QUICK)
    limits_for_efficiency(many, 0.9, steps=2)
    assert seen
    assert max(seen) <= FEW


def test_choosing_buckets_reads_the_sizes_a_few_times_however_many_classes(many, monkeypatch):
    """Once per cut and once per bucket, not once for each of 800 pairs of cuts."""
    seen = []
    inner = several._between
    monkeypatch.setattr(several, "_between", lambda *args: seen.append(1) or inner(*args))
    sg.plan_buckets(many, graphs=4)
    assert len(seen) <= several.CANDIDATES + 1 + sum(range(5))


def test_sums_over_bands_are_those_of_the_classes():
    histogram = SizeHistogram.from_sizes(spread(500) // 50)
    cuts = several._cuts(histogram.sizes[:, 0], histogram.counts)
    bands = [several._band(histogram, a, b) for a, b in pairwise(cuts)]
    for i in (0, 3):
        part = bands[i]
        for band in bands[i + 1 :]:
            part = part.with_band(band)
        direct = several._between(histogram, int(cuts[i]), int(cuts[-1]))
        assert part.num_graphs == direct.num_graphs
        np.testing.assert_array_equal(part.totals, direct.totals)
        np.testing.assert_array_equal(part.maxima, direct.maxima)


def test_trials_of_a_stream_draw_so_many_graphs_at_most(monkeypatch):
    from staticgraph.plans import margin

    seen = []
    inner = margin.pack_stream

    def watched(sizes, limits, *, max_graphs, order):
        seen.append(len(order))
        return inner(sizes, limits, max_graphs=max_graphs, order=order)

    monkeypatch.setattr(margin, "pack_stream", watched)
    monkeypatch.setattr(margin, "STREAM_GRAPHS", 2000)
    sizes = spread(9000)
    limits, reached = stream_limits(sizes, 32)
    assert max(seen) == 2000
    assert 0.9 < reached < 1
    assert (limits >= sizes.max(axis=0)).all()


def test_a_plan_says_what_rounding_cost_and_holds_every_graph(many, monkeypatch):
    cost = StepCost(pair=0.25)
    plan = sg.plan_buckets(many, num_buckets=3, graphs=16, cost=cost)
    assert "rounded up by" in plan.note
    graphs = [GraphSize(int(n), int(e)) for n, e in many.sizes[::7]]
    assert all(any(c.holds(graph) for c in plan.capacities) for graph in graphs)
    assert sg.plan_buckets(many.sizes[:100], num_buckets=3, graphs=16, cost=cost).note == ""
    fine = plan.efficiency
    monkeypatch.setattr(coarse_module, "MOST_SIZES", 50)
    crude = sg.plan_buckets(many, num_buckets=3, graphs=16, cost=cost)
    assert crude.efficiency[0] < fine[0] + 0.01, "rounded rows count as padding, not as real"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**40)), max_size=30), st.booleans())
@examples(60)
def test_distinct_rows_are_numpys(rows, wide):
    table = np.array(rows, np.int64).reshape(-1, 2) * (2**20 if wide else 1)
    expected = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    for found, theirs in zip(distinct_rows(table), expected, strict=True):
        np.testing.assert_array_equal(found, theirs.reshape(found.shape))
        assert found.dtype == np.int64
