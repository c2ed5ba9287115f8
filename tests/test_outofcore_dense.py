"""DENSE equals its plain reference, is uniform without replacement, and handles empty inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import dense_oracle
from support.drawn import examples

from staticgraph.outofcore.buffer.resident import Neighbours
from staticgraph.outofcore.sampling.dense import DenseSampler


def star(degree: int) -> Neighbours:
    """Row 0 with incoming edges from rows 1 to ``degree``."""
    return Neighbours.of(np.arange(1, degree + 1), np.zeros(degree, int), degree + 1)


@examples(80)
@given(
    rows=st.integers(1, 30), edges=st.integers(0, 150), fanouts=st.lists(st.integers(1, 4),
    min_size=1, max_size=4), direction=st.sampled_from(["in", "out", "both"]),
    seed=st.integers(0, 2**63), share=st.floats(0, 1),
)  # fmt: skip
def test_equals_the_plain_twin(rows, edges, fanouts, direction, seed, share):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, rows, (2, edges))
    neighbours = Neighbours.of(*ends, rows, direction)
    seeds = rng.permutation(rows)[: round(share * rows)]
    sampler = DenseSampler(neighbours, fanouts)
    found = sampler.sample(seeds, seed)
    expected = dense_oracle.sample(neighbours, fanouts, seeds, seed)
    np.testing.assert_array_equal(found.nodes, expected.nodes)
    assert found.hops == expected.hops
    for drawn, twin in zip(found.draws, expected.draws, strict=True):
        np.testing.assert_array_equal(drawn, twin)
    # A second call does not depend on the first.
    again = sampler.sample(seeds, seed)
    np.testing.assert_array_equal(found.nodes, again.nodes)


@examples(40)
@given(rows=st.integers(1, 25), edges=st.integers(0, 200), seed=st.integers(0, 999))
def test_samples_are_real_distinct_edges_of_nodes_first_reached(rows, edges, seed):
    rng = np.random.default_rng(seed)
    source, destination = rng.integers(0, rows, (2, edges))
    sampler = DenseSampler(Neighbours.of(source, destination, rows), [3, 2])
    found = sampler.sample(np.arange(min(3, rows)), seed)
    assert len(set(found.nodes.tolist())) == len(found.nodes)
    for hop, (drawn, fanout) in enumerate(zip(found.draws, (3, 2), strict=True)):
        own = found.nodes[found.hops[hop] : found.hops[hop + 1]]
        assert len(drawn) == len(own)
        for row, taken in zip(own.tolist(), drawn, strict=True):
            incoming = np.sort(source[destination == row])
            sampled = np.sort(found.nodes[taken[taken >= 0]])
            assert len(sampled) == min(fanout, len(incoming))
            # As multisets: no edge is sampled more often than it exists.
            for value, times in zip(*np.unique(sampled, return_counts=True), strict=True):
                assert times <= (incoming == value).sum()
        assert (drawn < found.hops[hop + 2]).all()


def test_uniform_over_neighbours():
    degree, fanout, draws = 23, 5, 20_000
    sampler = DenseSampler(star(degree), [fanout])
    counts = np.zeros(degree + 1)
    for seed in range(draws):
        counts[sampler.sample(np.array([0]), seed).nodes[1:]] += 1
    expected = draws * fanout / degree
    # Each count is binomial-like with variance expected * (1 - f/d): chi-square of d - 1 degrees.
    chi2 = ((counts[1:] - expected) ** 2 / (expected * (1 - fanout / degree))).sum()
    chi2 *= (degree - 1) / degree
    assert abs(chi2 - (degree - 1)) < 5 * np.sqrt(2 * (degree - 1))


@pytest.mark.parametrize(
    ("fanouts", "seeds", "message"),
    [
        ([], [0], "at least one hop"),
        ([2, 0], [0], "each at least 1"),
        ([2], [1, 1], "distinct"),
        ([2], [99], "the buffer has 4 rows"),
    ],
)
def test_what_cannot_be_sampled_is_named(fanouts, seeds, message):
    with pytest.raises(ValueError, match=message):
        DenseSampler(star(3), fanouts).sample(np.array(seeds), 0)


def test_an_unknown_direction_is_named():
    with pytest.raises(ValueError, match="choose one of in, out, both"):
        Neighbours.of(np.array([0]), np.array([0]), 1, "up")
