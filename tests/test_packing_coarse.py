"""Very many distinct sizes are rounded up to a few thousand: no graph is lost, no limit is
exceeded, and the work is bounded by counting it, not by a clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples

import staticgraph as sg
from staticgraph.packing import coarse as coarse_module
from staticgraph.packing.coarse import coarsened
from staticgraph.packing.draw_graphs import draw_packs, types_of
from staticgraph.packing.fill import QUICK, fill_histogram
from staticgraph.plans.cost import StepCost
from staticgraph.sizes.capacity import GraphSize
from staticgraph.sizes.histogram import SizeHistogram


def spread(count: int, seed: int = 0, columns: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 5000, (count, columns))


FEW = 400


@pytest.fixture
def many(monkeypatch) -> SizeHistogram:
    """Ten times as many distinct sizes as are packed without rounding."""
    monkeypatch.setattr(coarse_module, "MOST_SIZES", FEW)
    return SizeHistogram.from_sizes(spread(10 * FEW))


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
