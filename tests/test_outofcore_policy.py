"""Policies: each cell once, both ends resident, the published number of swaps, random where due."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples

from staticgraph.outofcore import (
    Beta,
    Comet,
    Dispersed,
    InMemory,
    NodeCache,
    Schedule,
    State,
    edge_permutation_bias,
    tune,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_is_an_epoch(schedule: Schedule, p: int, c: int, group: int) -> None:
    used = Counter(cell for state in schedule.states for cell in state.cells)
    assert used == Counter((i, j) for i in range(p) for j in range(p))
    for state in schedule.states:
        assert len(set(state.partitions)) == len(state.partitions) == min(c, p)
        assert {k for cell in state.cells for k in cell} <= set(state.partitions)
    for before, now in zip(schedule.states, schedule.states[1:], strict=False):
        assert len(set(now.partitions) - set(before.partitions)) == group


def assert_trains_once(schedule: Schedule, training: tuple[int, ...]) -> None:
    assert sorted(k for state in schedule.states for k in state.train) == sorted(training)
    assert all(set(state.train) <= set(state.partitions) for state in schedule.states)


# ---------------------------------------------------------------------- BETA and COMET


def beta_swaps(p: int, c: int) -> int:
    """Swaps of BETA after the first fill, by the closed form of Marius, section 4.2."""
    d = p - c
    if d <= 0:
        return 0
    x = d // (c - 1)
    return d + (x + 1) * d - (c - 1) * x * (x + 1) // 2


@examples(60)
@given(st.integers(2, 14), st.integers(2, 8), st.sampled_from(["greedy", "random"]), st.integers())
def test_beta_is_an_epoch_with_the_published_number_of_swaps(p, c, assignment, seed):
    schedule = Beta(c, assignment).epoch(p, rng(seed % 2**32))
    assert_is_an_epoch(schedule, p, c, 1)
    assert schedule.swaps == beta_swaps(p, c)
    if p > c:
        assert schedule.reads == c + schedule.swaps


@examples(40)
@given(st.integers(3, 9), st.integers(1, 4), st.integers(2, 4), st.integers())
def test_comet_is_an_epoch_of_grouped_moves(logical, group, fitting, seed):
    p, c = logical * group, fitting * group
    if c < 2 or c >= p:
        return
    schedule = Comet(c, logical).epoch(p, rng(seed % 2**32))
    assert_is_an_epoch(schedule, p, c, group)
    assert schedule.swaps == beta_swaps(logical, fitting)
    assert schedule.reads == c + group * schedule.swaps


def test_comet_gives_a_cell_to_every_state_that_holds_it_alike():
    draws, chosen, apart = 2000, Counter(), 0
    generator = rng(3)
    for _ in range(draws):
        schedule = Comet(4, 4).epoch(8, generator)
        holding = [n for n, s in enumerate(schedule.states) if {0, 1} <= set(s.partitions)]
        used = next(n for n, s in enumerate(schedule.states) if (0, 1) in s.cells)
        chosen[(len(holding), holding.index(used))] += 1
        apart += any((0 in s.partitions) != (1 in s.partitions) for s in schedule.states)
    assert apart  # every epoch groups the partitions anew
    for count in {held for held, _ in chosen}:
        found = [chosen[(count, place)] for place in range(count)]
        expected = sum(found) / count
        chi2 = sum((f - expected) ** 2 / expected for f in found)
        # Chi-square has mean df and standard deviation sqrt(2 df).
        assert chi2 < (count - 1) + 5 * math.sqrt(2 * max(1, count - 1))


@pytest.mark.parametrize("policy", [Beta(6), Beta(9), Comet(6), Comet(7, 3), InMemory()])
def test_a_buffer_for_everything_is_one_state_in_order(policy):
    schedule = policy.epoch(6, rng())
    assert schedule == InMemory().epoch(6, rng(5))
    assert schedule.swaps == 0
    assert policy.slots(6) == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Beta(1), "at least 2"),
        (lambda: Comet(0), "at least 2"),
        (lambda: Beta(2, "best"), "'greedy' or 'random'"),
        (lambda: Comet(4, 5).epoch(16, rng()), "do not divide"),
        (lambda: Comet(4, 4).epoch(16, rng()), "at least 2"),
        (lambda: Comet(5).epoch(16, rng()), "not a multiple"),
        (lambda: NodeCache(1), "at least 2"),
        (lambda: NodeCache(3, near=-1), "near=-1: give a whole number of at least 0"),
        (lambda: Beta(2.5), "buffer=2.5: give a whole number"),
        (lambda: Dispersed(4, 5), "step=5"),
        (lambda: NodeCache(2).epoch(8, (0, 1), rng()), "raise the buffer, .* or use Dispersed"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---------------------------------------------------------------------- nodes


@examples(60)
@given(st.integers(1, 12), st.integers(2, 12), st.integers(0, 12), st.integers(1, 4), st.integers())
def test_dispersed_uses_each_training_partition_once(p, c, train, step, seed):
    training = tuple(range(min(train, p)))
    policy = Dispersed(c, min(step, c))
    schedule = policy.epoch(p, training, rng(seed % 2**32))
    assert_trains_once(schedule, training)
    assert {k for state in schedule.states for k in state.partitions} == set(range(p))
    assert all(len(state.partitions) == min(c, p) for state in schedule.states)
    # A partition stays resident while the window covers it, so it is read once.
    assert schedule.reads == p


@pytest.mark.parametrize(("near", "kept"), [(2, {2, 3}), (3, {2, 3, 4}), (9, {2, 3, 4})])
def test_node_cache_keeps_the_partitions_behind_the_training_ones(near, kept):
    generator, others = rng(), Counter()
    for _ in range(300):
        schedule = NodeCache(5, near).epoch(10, (0, 1), generator)
        assert_trains_once(schedule, (0, 1))
        (state,) = schedule.states
        assert len(state.partitions) == 5
        assert {0, 1} | kept <= set(state.partitions)
        others.update(set(state.partitions) - {0, 1} - kept)
    assert set(others) == (set(range(4, 10)) if near == 2 else set())


# ---------------------------------------------------------------------- bias and tuning


def test_bias_by_hand():
    # The first state has one of the three cells of partition 0, none of partition 1: 1/3 apart.
    first, second = State((0, 1), ((0, 0),)), State((0, 1), ((0, 1), (1, 0), (1, 1)))
    assert edge_permutation_bias(Schedule(2, (first, second))) == pytest.approx(1 / 3)
    # With 8 edges in (0,0) and 1 in every other cell it is 8/10.
    sizes = [[8, 1], [1, 1]]
    assert edge_permutation_bias(Schedule(2, (first, second)), sizes) == pytest.approx(0.8)
    assert edge_permutation_bias(InMemory().epoch(5, rng())) == 0.0
    assert edge_permutation_bias(InMemory().epoch(2, rng()), np.zeros((2, 2))) == 0.0


@examples(80)
@given(st.integers(2000, 10**8), st.integers(1, 10**9), st.integers(8, 2000), st.floats(0.1, 0.9))
def test_tuning_fits_the_memory_and_the_policy(n, e, node_bytes, share):
    memory = int((n * node_bytes + e * 8) * share)
    try:
        tuning = tune(n, e, node_bytes, 8, memory)
    except ValueError:
        with pytest.raises(ValueError, match=r"the smallest takes \d+ bytes: raise"):
            tune(n, e, node_bytes, 8, memory)
        return
    assert tuning.memory_bytes <= memory
    assert tuning.partitions * 2 == tuning.logical * tuning.buffer
    assert math.ceil(n / math.ceil(n / tuning.partitions)) == tuning.partitions
    assert Comet(tuning.buffer, tuning.logical).group(tuning.partitions) * 2 == tuning.buffer
