"""Batches: every graph once, nothing over a limit, the same for the same seed, rank by rank."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staticgraph.batching import Batcher, BatchIds
from staticgraph.buckets import BucketPlan, plan_buckets
from staticgraph.errors import GraphTooLarge
from staticgraph.sizes import Capacity


def molecules(n: int, seed: int = 0) -> np.ndarray:
    """Sizes like those of molecules: log-normal nodes, edges about twice as many."""
    rng = np.random.default_rng(seed)
    nodes = np.clip(rng.lognormal(3.1, 0.45, n), 1, 220).astype(np.int64)
    return np.stack([nodes, 2 * np.maximum(0, nodes - 1 + rng.integers(0, 5, n))], axis=1)


def assert_fits(batch: BatchIds, sizes: np.ndarray, capacity: Capacity) -> None:
    nodes, edges = sizes[batch.ids].sum(axis=0)
    assert nodes <= capacity.node_limit
    assert edges <= capacity.edge_limit
    assert len(batch.ids) <= capacity.graph_limit
    if len(batch.ids):
        assert sizes[batch.ids, 0].max() <= capacity.max_graph_nodes


def seen(batches: list[BatchIds]) -> Counter[int]:
    return Counter(int(i) for batch in batches for i in batch.ids)


sizes_arrays = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 90)), min_size=1, max_size=120
).map(lambda rows: np.array(rows, dtype=np.int64))


@settings(max_examples=60, deadline=None)
@given(
    sizes=sizes_arrays,
    batch_size=st.integers(1, 20),
    exact=st.booleans(),
    shuffle=st.booleans(),
    world_size=st.integers(1, 4),
    min_steps=st.integers(0, 9),
    seed=st.integers(0, 5),
)
def test_every_graph_once_in_the_same_bucket_on_all_ranks(
    sizes, batch_size, exact, shuffle, world_size, min_steps, seed
):
    plan = plan_buckets(sizes, batch_size)
    ranks = [
        Batcher(
            sizes,
            plan,
            exact=exact,
            shuffle=shuffle,
            seed=seed,
            rank=rank,
            world_size=world_size,
            min_steps=min_steps,
        )
        for rank in range(world_size)
    ]
    epochs = [ranked.epoch(3) for ranked in ranks]
    assert len({len(batches) for batches in epochs}) == 1
    assert len(epochs[0]) >= min_steps
    for step in zip(*epochs, strict=True):
        assert len({batch.bucket for batch in step}) == 1
        for batch in step:
            assert_fits(batch, sizes, plan.capacities[batch.bucket])
    together = seen([batch for batches in epochs for batch in batches])
    assert together == Counter(range(len(sizes)))
    assert all(ranked.epoch(3) == ranked.epoch(3) for ranked in ranks)


def test_exact_batches_hold_exactly_the_batch_size():
    sizes = molecules(5000)
    batcher = Batcher(sizes, plan_buckets(sizes, 128), shuffle=True)
    for epoch in range(20):
        counts = [len(batch.ids) for batch in batcher.epoch(epoch)]
        assert counts[:-1] == [128] * (5000 // 128)
        assert counts[-1] == 5000 % 128
        assert batcher.epoch_stats(epoch).split == 0
        assert batcher.epoch_stats(epoch).overflowed > 0


def test_order_is_kept_without_shuffling():
    sizes = molecules(1000)
    indices = np.random.default_rng(1).permutation(1000)[:700]
    batcher = Batcher(sizes, plan_buckets(sizes, 32), indices=indices)
    joined = np.concatenate([batch.ids for batch in batcher.epoch(0)])
    np.testing.assert_array_equal(joined, indices)


def test_resume_in_mid_epoch_gives_the_rest():
    sizes = molecules(2000)
    plan = plan_buckets(sizes, 32)
    whole = Batcher(sizes, plan, shuffle=True, seed=7)
    expected = [batch.ids for _ in range(3) for batch in whole]
    first = Batcher(sizes, plan, shuffle=True, seed=7)
    got = []
    for batch in first:
        got.append(batch.ids)
    for batch in first:
        got.append(batch.ids)
        if len(got) == 80:
            break
    second = Batcher(sizes, plan, shuffle=True, seed=7)
    second.load_state_dict(first.state_dict())
    got += [batch.ids for batch in second]
    got += [batch.ids for batch in second]
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_state_of_another_batcher_is_refused():
    sizes = molecules(100)
    plan = plan_buckets(sizes, 8)
    state = Batcher(sizes, plan, shuffle=True, seed=1).state_dict()
    with pytest.raises(ValueError, match=r"seed was 1 and is 2"):
        Batcher(sizes, plan, shuffle=True, seed=2).load_state_dict(state)


def test_oversize():
    sizes = np.array([[5, 8], [6, 10], [9, 612], [3, 4]])
    plan = BucketPlan.of([(20, 512, 4)], batch_size=2)
    with pytest.raises(GraphTooLarge, match=r"graph 2 has 612 edges; the largest bucket holds 512"):
        Batcher(sizes, plan)
    skipping = Batcher(sizes, plan, oversize="skip")
    assert seen(skipping.epoch(0)) == Counter([0, 1, 3])
    assert skipping.stats.skipped == 1
    roomy = Batcher(sizes, plan, oversize="bucket")
    assert seen(roomy.epoch(0)) == Counter(range(4))
    assert roomy.plan.capacities[0] == plan.capacities[0]
    assert len(roomy.plan.capacities) == 2


def test_overflow_spills_then_splits_and_is_counted():
    sizes = np.array([[10, 20]] * 4 + [[2, 2]] * 4)
    plan = BucketPlan.of([(25, 50, 3)], batch_size=2)
    with pytest.warns(UserWarning, match="split in two"):
        split = Batcher(np.array([[20, 20]] * 4), plan)
    assert [len(batch.ids) for batch in split.epoch(0)] == [1, 1, 1, 1]
    assert split.stats.split == 2
    spill = Batcher(sizes, BucketPlan.of([(15, 50, 3), (25, 51, 4)], batch_size=2))
    assert [batch.bucket for batch in spill.epoch(0)] == [1, 1, 0, 0]
    assert spill.stats.spilled == 2


def test_exact_needs_a_batch_size():
    with pytest.raises(ValueError, match="exact=False"):
        Batcher(molecules(10), BucketPlan.of([(500, 1000, 5)]))
