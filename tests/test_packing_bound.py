"""The certificate: valid wherever the solver stops, tight where it is solved to the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from support.drawn import examples
from support.packing_problems import fewest_packs, load, problems

from staticgraph.packing import pack_histogram
from staticgraph.packing.bound import packing_bound
from staticgraph.sizes.histogram import SizeHistogram


@examples(40)
@given(problems(max_types=4, max_count=2))
def test_the_bound_is_never_above_the_true_minimum(problem):
    histogram, limits, max_graphs = problem
    bound = packing_bound(histogram, limits, max_graphs=max_graphs)
    assert bound.volume <= bound.packs <= fewest_packs(histogram, limits, max_graphs)


def test_far_above_the_volume_where_sizes_do_not_add_up():
    """Three graphs of 6 in packs of 10: two packs by volume, three in fact."""
    histogram = SizeHistogram(np.array([[6, 1]]), np.array([3]))
    bound = packing_bound(histogram, (10, 100))
    assert (bound.volume, bound.packs) == (2, 3)


def test_fractions_by_hand():
    """Five graphs of 5 and nine of 4 at a limit of 9: 5+4 five times and 4+4 twice, 7 packs."""
    histogram = SizeHistogram(np.array([[4, 0], [5, 0]]), np.array([9, 5]))
    bound = packing_bound(histogram, (9, 0))
    assert bound.linear == pytest.approx(7.0)
    assert bound.packs == 7 == pack_histogram(histogram, (9, 0)).num_packs


# The larger set takes ten times as long for the same proof.
@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "limits", "max_graphs", "linear", "packs"),
    [
        ("tu_NCI1", (111, 238), None, 1116.0084, 1117),
        ("ogbg-molhiv_train", (222, 502), 256, 3743.054, 3744),
    ],
)
def test_a_packing_is_proven_best_and_stopped_early_the_bound_is_valid(
    name, limits, max_graphs, linear, packs
):
    """The volume bound is one pack lower, so only the relaxation proves it."""
    histogram = load(name)
    early = [
        packing_bound(histogram, limits, max_graphs=max_graphs, rounds=rounds).linear
        for rounds in (1, 5)
    ]
    bound = packing_bound(histogram, limits, max_graphs=max_graphs)
    assert early == sorted(early)
    assert early[-1] <= bound.linear == pytest.approx(linear, abs=1e-3)
    assert bound.volume == packs - 1
    found = pack_histogram(histogram, limits, max_graphs=max_graphs)
    assert bound.packs == packs == found.num_packs


def test_a_grid_too_fine_is_rounded_and_stays_valid():
    histogram = load("tu_IMDB-BINARY")
    bound = packing_bound(histogram, histogram.maxima, rounds=10)
    assert bound.coarse
    assert bound.packs <= pack_histogram(histogram, histogram.maxima).num_packs
