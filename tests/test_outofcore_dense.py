"""DENSE is uniform without replacement, reaches each node once, and handles empty inputs."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples

from staticgraph.outofcore.sampling.dense import DenseSample, Neighbours


def star(degree: int) -> Neighbours:
    """Row 0 with incoming edges from rows 1 to ``degree``."""
    return Neighbours.of(np.arange(1, degree + 1), np.zeros(degree, int), degree + 1)


def neighbour_rows(found: DenseSample, hop: int) -> list[list[int]]:
    """For each node of a hop, the rows that were drawn, in order."""
    return [found.nodes[drawn[drawn >= 0]].tolist() for drawn in found.draws[hop]]


@examples(80)
@given(
    rows=st.integers(1, 30), edges=st.integers(0, 150), fanouts=st.lists(st.integers(1, 4),
    min_size=1, max_size=4), direction=st.sampled_from(["in", "out", "both"]),
    seed=st.integers(0, 2**63), share=st.floats(0, 1),
)  # fmt: skip
def test_samples_are_real_distinct_edges_of_nodes_first_reached(
    rows, edges, fanouts, direction, seed, share
):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, rows, (2, edges))
    seeds = rng.permutation(rows)[: round(share * rows)]
    neighbours = Neighbours.of(*ends, rows, direction)
    found = neighbours.sample(seeds, fanouts, seed)
    assert found.nodes[: found.hops[1]].tolist() == seeds.tolist()
    assert len(set(found.nodes.tolist())) == len(found.nodes) == found.hops[-1]
    ways = {"in": [ends], "out": [ends[::-1]], "both": [ends, ends[::-1]]}[direction]
    for hop, (drawn, fanout) in enumerate(zip(found.draws, fanouts, strict=True)):
        owners = found.nodes[found.hops[hop] : found.hops[hop + 1]].tolist()
        for row, taken in zip(owners, drawn.reshape(len(owners), len(ways), fanout), strict=True):
            for (source, destination), places in zip(ways, taken, strict=True):
                there = Counter(source[destination == row].tolist())
                sampled = Counter(found.nodes[places[places >= 0]].tolist())
                assert sampled.total() == min(fanout, there.total())
                assert sampled <= there, "no edge is sampled more often than it exists"
        assert set(range(*found.hops[hop + 1 : hop + 3])) <= set(drawn.flatten().tolist())
        assert (drawn < found.hops[hop + 2]).all()
    # A second call does not depend on the first, nor a row's sample on the other seeds.
    some = neighbours.sample(seeds[::2], fanouts, seed)
    assert neighbour_rows(some, 0) == neighbour_rows(found, 0)[::2]


def test_uniform_over_neighbours():
    degree, fanout, draws = 23, 5, 20_000
    neighbours = star(degree)
    counts = np.zeros(degree + 1)
    for seed in range(draws):
        counts[neighbours.sample(np.array([0]), [fanout], seed).nodes[1:]] += 1
    expected = draws * fanout / degree
    # Each count is binomial-like with variance expected * (1 - f/d): chi-square of d - 1 degrees.
    chi2 = ((counts[1:] - expected) ** 2 / (expected * (1 - fanout / degree))).sum()
    chi2 *= (degree - 1) / degree
    assert abs(chi2 - (degree - 1)) < 5 * np.sqrt(2 * (degree - 1))


def test_rows_and_directions_are_drawn_apart():
    """Two rows with the same neighbours on both sides: equal as often as chance would have it."""
    others, draws = np.arange(2, 25), 2000
    hubs = np.repeat([0, 1], len(others))
    ends = np.concatenate([np.tile(others, 2), hubs]), np.concatenate([hubs, np.tile(others, 2)])
    neighbours = Neighbours.of(*ends, 25, "both")
    found = [neighbours.sample(np.array([0, 1]), [1], seed) for seed in range(draws)]
    rows = np.array([sample.nodes[sample.draws[0]].flatten() for sample in found])
    for one, other in combinations(rows.T, 2):
        assert abs((one == other).sum() - draws / len(others)) < 5 * np.sqrt(draws / len(others))
