"""Fits of memory: exact where the truth has the form, refused with a reason where it has not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.memory_points import CAPACITIES, HELD_OUT, points_of

from staticgraph.errors import FitRefused
from staticgraph.memory.fit import TERMS, FitPoint, counts_of, fit
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many

coefficient = st.one_of(st.just(0.0), st.floats(1.0, 1e5))


def linear_points(capacities=CAPACITIES):
    return points_of(TERMS["linear"], (1e3, 10.0, 1.0, 1.0, 1.0), capacities)


@given(st.tuples(*[coefficient] * 5))
@examples(50)
def test_a_linear_truth_is_found_and_extrapolates(coefficients):
    terms = TERMS["linear"]
    points = points_of(terms, (1.0 + coefficients[0], *coefficients[1:]))
    found = fit(points, "linear")
    truth = points_of(terms, (1.0 + coefficients[0], *coefficients[1:]), [HELD_OUT])[0]
    assert found.residual < 1e-6
    assert math.isclose(found.predict(HELD_OUT), truth.nbytes, rel_tol=1e-5)
    assert all(value >= 0 for plane in found.planes for value in plane)


@pytest.mark.parametrize("form", ["attention", "quadratic"])
def test_auto_finds_the_form(form):
    terms = TERMS[form]
    truth = {"fixed": 1e5, "nodes": 3e3, "edges": 5e2, "graphs": 64.0, "pairs": 9.0, "nodes^2": 2.0}
    coefficients = [truth.get(term, 0.0) for term in terms]
    held_out = points_of(terms, coefficients, [HELD_OUT])[0]
    found = fit(points_of(terms, coefficients), "auto", held_out)
    assert found.form == form
    assert found.held_out is not None
    assert found.held_out < 1e-6
    assert "linear misses by" in found.note


def noisy_points(spread, coefficients):
    """Points of a linear truth, off by a share of at most ``spread``."""
    generator = np.random.default_rng(1)
    return [
        p._replace(nbytes=p.nbytes * generator.uniform(1 - spread, 1 + spread))
        for p in points_of(TERMS["linear"], coefficients)
    ]


def test_no_coefficient_is_negative_where_plain_least_squares_has_one():
    points = noisy_points(0.02, (1e3, 100.0, 0.0, 0.0, 0.0))
    columns = np.array([[counts_of(c)[t] for t in TERMS["linear"]] for c, *_ in points])
    plain, *_ = np.linalg.lstsq(columns, [p.nbytes for p in points], rcond=None)
    assert plain.min() < 0, "the example must be one where it matters"
    assert min(fit(points, "linear").planes[0]) >= 0


def test_the_peak_moves_from_one_moment_to_another():
    """Two moments, the first higher with many edges: one plane does not fit them, two planes do."""

    def moments(c):
        return np.array([50.0 * c.nodes + 900.0 * c.edges, 2000.0 * c.nodes + 1.0, 7.0])

    points = [FitPoint(c, float(moments(c).max()), moments(c)) for c in CAPACITIES]
    found = fit(points, "linear")
    assert found.residual < 1e-9
    with pytest.raises(FitRefused):
        fit([p._replace(moments=None) for p in points], "linear")
    for capacity in (HELD_OUT, Capacity(1000, 90_000, 20, 60), Capacity(90_000, 10, 20, 60)):
        assert math.isclose(found.predict(capacity), moments(capacity).max(), rel_tol=1e-9)


def test_with_the_margin_no_measured_point_is_under_predicted():
    points = noisy_points(0.03, (1e3, 100.0, 20.0, 5.0, 0.0))
    memory = MemoryModel(fit(points, "linear"))
    short = [memory.fit.predict(p.capacity) < p.nbytes for p in points]
    assert any(short), "the example must be one where it matters"
    assert all(memory.step_bytes(p.capacity) >= p.nbytes * (1 - 1e-6) for p in points)


@pytest.mark.parametrize("count", range(6))
def test_too_few_points_are_refused(count):
    points = linear_points()[:count]
    with pytest.raises(FitRefused, match=f"{how_many(count, 'point')} for the 5 unknowns"):
        fit(points, "linear")


def test_collinear_points_are_refused():
    line = [Capacity(100 * k, 210 * k, 10 * k, 30) for k in range(1, 9)]
    with pytest.raises(FitRefused, match=r"do not tell .*nodes, edges.* apart"):
        fit(linear_points(line))


def test_a_residual_over_five_percent_is_refused():
    points = linear_points()
    points[-1] = points[-1]._replace(nbytes=2 * points[-1].nbytes)
    with pytest.raises(FitRefused, match=r"misses .* by \d+\.\d%.*measured.*fitted"):
        fit(points, "linear")


def test_negative_curvature_falls_back_to_the_line():
    bent = [FitPoint(c, 1e6 + 1e3 * c.nodes - 5e-3 * c.nodes**2) for c in CAPACITIES]
    found = fit(bent, "quadratic")
    assert found.planes[0][TERMS["quadratic"].index("nodes^2")] == 0


def test_a_point_without_bytes_is_refused():
    points = linear_points()
    for nothing in (0.0, math.nan, math.inf):
        with pytest.raises(FitRefused, match="no positive number of bytes"):
            fit([*points, FitPoint(HELD_OUT, nothing)])
