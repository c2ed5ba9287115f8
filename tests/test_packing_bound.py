"""The certificate: valid wherever the solver stops, tight where it is solved to the end."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from support.packing_problems import fewest_packs, load, problems

from staticgraph.packing import pack_histogram
from staticgraph.packing.bound import packing_bound
from staticgraph.sizes.histogram import SizeHistogram


@settings(max_examples=40, deadline=None)
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


def test_stopped_early_it_is_still_valid():
    histogram = load("tu_NCI1")
    found = pack_histogram(histogram, histogram.maxima).num_packs
    values = [
        packing_bound(histogram, histogram.maxima, rounds=rounds).linear for rounds in (1, 5, 60)
    ]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(1116.0084, abs=1e-3)
    assert np.ceil(values[-1]) <= found


def test_a_grid_too_fine_is_rounded_and_stays_valid():
    histogram = load("tu_IMDB-BINARY")
    bound = packing_bound(histogram, histogram.maxima, rounds=10)
    assert bound.coarse
    assert bound.packs <= pack_histogram(histogram, histogram.maxima).num_packs


@pytest.mark.slow
def test_the_packing_of_molhiv_is_proven_best():
    histogram = load("ogbg-molhiv_train")
    bound = packing_bound(histogram, (222, 502), max_graphs=256)
    assert bound.linear == pytest.approx(3743.054, abs=1e-3)
    assert bound.packs == 3744 == pack_histogram(histogram, (222, 502), max_graphs=256).num_packs


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"pip install 'staticgraph\[bound\]'"):
        packing_bound(load("esol"), (55, 124))
