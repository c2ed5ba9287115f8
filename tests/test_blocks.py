"""Orders in blocks: whole blocks, mixed windows, every graph once; and epochs of many graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.written_stores import LEVELS, graphs_of

import staticgraph as sg
from staticgraph.epochs import used_graphs
from staticgraph.epochs.batcher import Batcher
from staticgraph.epochs.blocks import Blocks, block_order
from staticgraph.epochs.windows import level
from staticgraph.packing.random import shuffle as shuffle_in_place
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.sizes import histogram as histograms
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import stacked


def sizes_of(n: int, seed: int = 0) -> np.ndarray:
    nodes = np.random.default_rng(seed).integers(2, 40, n)
    return np.stack([nodes, 2 * nodes], axis=1)


@examples(40)
@given(
    blocks=st.integers(0, 12), graphs=st.integers(1, 9), window=st.integers(1, 5),
    apart=st.integers(1, 4), rest=st.integers(0, 8), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_windows_are_whole_blocks(blocks, graphs, window, apart, rest, seed):
    """The order depends on seed and epoch alone, and has every graph once."""
    drawn = Blocks(graphs, window)
    indices = np.arange(blocks * graphs) * apart
    order = block_order(indices, drawn, seed, 1).graphs
    assert np.array_equal(order, block_order(indices[::-1].copy(), drawn, seed, 1).graphs)
    for begin in range(0, len(order), graphs * window):
        here = np.sort(order[begin : begin + graphs * window]) // apart
        assert (np.unique(here // graphs, return_counts=True)[1] == graphs).all()
    ragged = np.arange(blocks * graphs + rest)
    assert sorted(block_order(ragged, drawn, seed, 0).graphs) == ragged.tolist()


@examples(40)
@given(
    blocks=st.integers(1, 40), graphs=st.integers(1, 9), window=st.integers(1, 8),
    rest=st.integers(0, 8), room=st.floats(0, 0.2), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_windows_swap_whole_blocks_and_come_nearer_to_the_mean(
    blocks, graphs, window, rest, room, seed
):
    n = blocks * graphs + rest % graphs
    sizes = np.random.default_rng(seed).integers(1, 40, (n, 2))
    standing, first = np.arange(n), np.arange(-(-n // graphs))
    shuffle_in_place(first, np.uint64(seed))
    mean = sizes.mean(axis=0)
    found = []
    for dtype in (np.int64, np.int32):
        drawn = first.copy()
        most = (1 + room) * mean
        level(drawn, standing.astype(dtype), graphs, window, sizes, most, np.uint64(seed))
        found.append(drawn.tolist())
    assert sorted(found[0]) == sorted(first.tolist())
    assert found[0] == found[1]

    def beyond(order) -> np.ndarray:
        parts = [sizes[b * graphs : (b + 1) * graphs] - mean for b in order]
        return np.add.reduceat([part.sum(axis=0) for part in parts], range(0, len(order), window))

    before, after = ((beyond(order) / (graphs * mean)) for order in (first, np.array(found[0])))
    assert (after**2).sum() <= (before**2).sum() + 1e-9
    if (before <= 0).all():
        assert found[0] == first.tolist()


@pytest.mark.slow  # on a fresh clone, for what its cases compile
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_epoch_in_blocks(exact, ranks):
    """Every graph once, exact batches, and on average at most half a block per batch beyond the 8
    of its window."""
    sizes, blocks = sizes_of(12_000), Blocks(256, 8)
    plan = plan_buckets(sizes, 16)
    batchers_ = [
        Batcher(sizes, plan, exact=exact, shuffle=blocks, seed=1, rank=r, world_size=ranks)
        for r in range(ranks)
    ]
    batches = [batcher.epoch(2) for batcher in batchers_]
    ids = np.concatenate([batch.ids for rank in batches for batch in rank])
    assert sorted(ids) == list(range(12_000))
    assert len({tuple(batch.bucket for batch in rank) for rank in batches}) == 1
    counts = [len(batch.ids) for rank in batches for batch in rank if len(batch.ids)]
    if exact:
        assert counts == [16] * 750
    touched = [len(np.unique(b.ids // 256)) for rank in batches for b in rank if len(b.ids)]
    assert np.mean(touched) <= 8.5
    again = Batcher(sizes, plan, exact=exact, shuffle=blocks, seed=1, world_size=ranks)
    again.load_state_dict(batchers_[0].state_dict())
    other = Batcher(sizes, plan, exact=exact, shuffle=Blocks(256, 4), seed=1, world_size=ranks)
    with pytest.raises(ValueError, match="blocks was"):
        other.load_state_dict(batchers_[0].state_dict())
    earlier = batchers_[0].state_dict()  # from an order that the same seed no longer gives
    earlier["of"] = {**earlier["of"], "blocks": (256, 8)}
    with pytest.raises(ValueError, match=r"blocks was \(256, 8\) and is"):
        again.load_state_dict(earlier)


def test_what_cannot_be_in_blocks_is_refused():
    sizes = sizes_of(50)
    plan = plan_buckets(sizes, 4)
    with pytest.raises(ValueError, match="deals all of them again"):
        Batcher(sizes, plan, exact=False, shuffle="blocks", window=None)
    with pytest.raises(ValueError, match="shuffle='block'; choose"):
        Batcher(sizes, plan, shuffle="block")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window=0: give a whole number of at least 1"):
        Blocks(4, 0)
    with pytest.raises(ValueError, match="where each rank's graphs"):
        Batcher(sizes, plan, world_size=2, rank_bounds=[0, 60, 50])
    with pytest.raises(ValueError, match="end at 49"):
        Batcher(sizes, plan, world_size=2, rank_bounds=[0, 20, 49])


@examples(20)
@given(
    n=st.integers(4, 120), cuts=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    exact=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_ranks_with_graphs_of_their_own(n, cuts, exact, seed):
    """Each takes its own graphs alone, all take the same bucket per step, each graph comes once."""
    sizes = sizes_of(n, seed)
    plan = plan_buckets(sizes, 4, num_buckets=2)
    bounds = [0, *sorted(int(c * n) for c in cuts), n]
    ranks = [
        Batcher(sizes, plan, exact=exact, shuffle=True, seed=seed, rank=r, world_size=4,
                rank_bounds=bounds)
        for r in range(4)
    ]  # fmt: skip
    epochs = [batcher.epoch(3) for batcher in ranks]
    for rank, batches in enumerate(epochs):
        ids = sorted(np.concatenate([b.ids for b in batches]).tolist())
        assert ids == list(range(bounds[rank], bounds[rank + 1]))
    assert len({tuple(b.bucket for b in batches) for batches in epochs}) == 1
    rows = ranks[0].rows(3)
    assert rows.shape == (len(epochs[0]), 4, 3)
    assert rows[:, :, 0].tolist() == [
        [len(b.ids) for b in step] for step in zip(*epochs, strict=True)
    ]
    assert rows[:, :, 1:].sum(axis=(0, 1)).tolist() == sizes.sum(axis=0).tolist()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shuffle", [True, False, "blocks"])
@pytest.mark.parametrize("exact", [True, False])
def test_narrow_types_give_the_same_batches(shuffle, exact, monkeypatch):
    """For many graphs, sizes are int16 and positions int32; the batches are the same."""
    graphs = graphs_of(90)
    store = sg.GraphStore.from_pyg(graphs, levels=LEVELS)
    plan = sg.plan_buckets(store, 6)
    split = np.random.default_rng(0).permutation(90)[:70]
    found = []
    for least in (1 << 22, 1):
        monkeypatch.setattr(used_graphs, "NARROW_FROM", least)
        monkeypatch.setattr(used_graphs, "AT_ONCE", 7 if least == 1 else 1 << 21)
        batcher = Batcher(store, plan, indices=split, exact=exact, shuffle=shuffle, seed=2)
        assert batcher.sizes.dtype == (np.int16 if least == 1 else np.int64)
        assert batcher.indices.dtype == (np.int32 if least == 1 else np.int64)
        found.append(
            (
                [(b.bucket, b.ids.dtype, b.ids.tolist()) for b in batcher.epoch(1)],
                batcher.rows(1).tolist(),
                batcher.state_dict(),
                batcher.epoch_stats(1),
            )
        )
    assert found[0] == found[1]


def test_a_window_of_large_graphs_is_balanced_with_others():
    """A store sorted by size: a window of large graphs does not fit alone, but all together do."""
    nodes = np.sort(np.random.default_rng(0).integers(2, 40, 6000))
    sizes = np.stack([nodes, nodes], axis=1)
    batcher = Batcher(sizes, plan_buckets(sizes, 16, num_buckets=1), shuffle=Blocks(100, 4))
    assert [len(batch.ids) for batch in batcher.epoch(0)] == [16] * 375
    assert batcher.stats.overflowed > 100
    assert batcher.stats.split == 0


@examples(30)
@given(n=st.integers(0, 60), at_once=st.integers(1, 20), most=st.integers(0, 5))
def test_a_histogram_in_pieces(n, at_once, most):
    sizes = np.random.default_rng(n).integers(0, most + 1, (n, 2))
    whole = SizeHistogram.from_sizes(sizes)
    parts = [sizes[k : k + at_once] for k in range(0, n, at_once)] or [sizes]
    merged = SizeHistogram.merged([SizeHistogram.from_sizes(part) for part in parts])
    assert merged.digest == whole.digest
    before, histograms.AT_ONCE = histograms.AT_ONCE, at_once
    try:
        assert SizeHistogram.from_sizes(stacked(list(sizes.T))).digest == whole.digest
    finally:
        histograms.AT_ONCE = before
