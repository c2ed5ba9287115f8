"""A bucket's bounds on its largest graphs hold in every batch, and no graph is lost by them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from support.drawn import examples

import staticgraph as sg
from staticgraph.epochs.batcher import Batcher
from staticgraph.errors import GraphTooLarge
from staticgraph.packing.exchange import exchange_graphs
from staticgraph.plans.order_statistics import (
    _cheapest_cuts,
    keep_order_statistics,
    likely_order_statistics,
)
from staticgraph.sizes.attention import ENTRIES_A_BLOCK, MAX_BLOCKS, attention_path


def kept(nodes: list[int], bounds: tuple[tuple[int, int], ...]) -> bool:
    """The bounds by definition: sorted by falling size, graphs from k on have at most the width."""
    falling = sorted(nodes, reverse=True)
    return all(size <= width for k, width in bounds for size in falling[k:])


def entries(capacity: sg.Capacity) -> int:
    return dict(attention_path(capacity).costs)["size-classed"]


def test_the_plan_has_narrower_blocks_and_no_more_buckets(hiv):
    """Limits alone give 26% of the dense entries, bounds about 5%, the figures in the docs."""
    plain = sg.plan_buckets(hiv, 128)
    plan = sg.plan_buckets(hiv, 128, attention="auto")
    (tight,) = plan.capacities
    assert replace(tight, order_statistics=()) == plain.capacities[0]
    dense = tight.graphs * tight.max_graph_nodes**2
    assert entries(plain.capacities[0]) > 0.2 * dense
    assert entries(tight) < 0.06 * dense
    values = plan.to_dict()
    assert values["capacities"][0]["ranks"] == [list(pair) for pair in tight.order_statistics]
    assert sg.BucketPlan.from_dict(values) == plan
    assert sg.plan_buckets(hiv, 128, attention="varlen").capacities == plain.capacities


def test_every_graph_is_in_one_batch_that_keeps_its_buckets_promise(hiv):
    plan = sg.plan_buckets(hiv, 128, attention="size-classed")
    batcher = Batcher(hiv, plan, shuffle=True, seed=3)
    nodes = np.asarray(hiv.sizes)[:, 0]
    for epoch in range(3):
        batches = batcher.epoch(epoch)
        seen = np.concatenate([batch.ids for batch in batches])
        assert np.array_equal(np.sort(seen), np.arange(len(hiv)))
        for bucket, ids in batches:
            assert kept(nodes[ids].tolist(), plan.capacities[bucket].order_statistics)
        stats = batcher.epoch_stats(epoch)
        assert (stats.spilled, stats.split) == (0, 0), "graphs are exchanged instead"
        assert stats.rebalanced == stats.overflowed
        assert sorted({len(ids) for _, ids in batches}) == sorted({128, len(hiv) % 128})


@given(st.data())
@examples(80)
def test_batches_that_break_a_promise_are_moved_or_divided_and_counted(data):
    """Whatever the bounds: every graph exactly once, in a bucket whose bounds hold."""
    nodes = np.array(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=24)))
    sizes = np.column_stack([nodes, nodes * 2])
    firsts = sorted(data.draw(st.sets(st.integers(1, 20), max_size=4)))
    widths = sorted(data.draw(st.sets(st.integers(1, 39), min_size=len(firsts), max_size=5)))
    widths = widths[::-1][: len(firsts)]
    bounds = ((0, 40), *zip(firsts, widths, strict=True))
    tight = sg.Capacity(1001, 2002, 25, 40, order_statistics=bounds)
    wide = [sg.Capacity(1002, 2003, 25, 40)] if data.draw(st.booleans()) else []
    cuts = sorted(data.draw(st.sets(st.integers(1, 24), max_size=3)))
    parts = [part for part in np.split(np.arange(len(nodes)), cuts) if len(part)]
    capacities = [tight, *wide]
    found, spilled, split = keep_order_statistics([(0, part) for part in parts], sizes, capacities)
    assert [i for _, ids in found for i in ids] == list(range(len(nodes)))
    assert all(
        kept(nodes[ids].tolist(), capacities[bucket].order_statistics) for bucket, ids in found
    )
    broken = sum(not kept(nodes[part].tolist(), bounds) for part in parts)
    assert spilled + split == broken
    assert split == 0 if wide else spilled == 0
    assert len(found) == len(parts) or split


def test_without_a_wider_bucket_a_batch_is_halved_until_its_parts_keep_the_promise():
    sizes = np.array([[40, 80]] * 5 + [[3, 6]] * 4)
    tight = sg.Capacity(1001, 2002, 25, 40, order_statistics=((0, 40), (1, 3)))
    found, spilled, split = keep_order_statistics([(0, np.arange(9))], sizes, [tight])
    assert [ids.tolist() for _, ids in found] == [[0], [1], [2], [3], [4, 5, 6, 7, 8]]
    assert (spilled, split) == (0, 1)


def test_a_batch_by_hand_that_breaks_the_promise_is_refused(esol):
    nodes = np.asarray(esol.sizes)[:, 0]
    large = np.argsort(-nodes, kind="stable")[:6]
    capacity = sg.Capacity(900, 1800, 20, 60, order_statistics=((0, 60), (2, 5)))
    with pytest.raises(GraphTooLarge, match="at most 2 graphs of more than 5 nodes"):
        sg.StaticBatch.of(esol, large, capacity)
    sg.StaticBatch.of(esol, large, replace(capacity, order_statistics=()))
    sg.StaticBatch.of(esol, large[:2], capacity)


def test_capacities_of_older_files_are_read():
    """Older memory models wrote every field, with pairs as lists."""
    written = {"nodes": 11, "edges": 20, "graphs": 5, "max_graph_nodes": 9, "edge_reserve": 1}
    written |= {"extra": [["triplets", 40]], "ranks": [[0, 9], [2, 3]], "node_reserve": 1}
    capacity = sg.Capacity(11, 20, 5, 9, (("triplets", 40),), 1, ((0, 9), (2, 3)))
    assert sg.Capacity.from_dict(written) == capacity
    assert sg.Capacity.from_dict(capacity.to_dict()) == capacity
    assert sg.Capacity.from_dict({**written, "extra": [], "ranks": []}).order_statistics == ()


@pytest.mark.parametrize(
    "bounds", [((1, 60),), ((0, 59),), ((0, 60), (20, 5)), ((0, 60), (2, 60)), ((0, 60), (2, 0))]
)
def test_order_statistics_that_promise_nonsense_are_refused(bounds):
    with pytest.raises(ValueError, match="must begin with"):
        sg.Capacity(900, 1800, 20, 60, order_statistics=bounds)


def test_the_cuts_are_the_cheapest():
    """Compared with every possible cut of a few sizes."""
    widths = np.array([400, 390, 180, 178, 90, 40, 39, 38, 12, 11])

    def cost(firsts: tuple[int, ...]) -> int:
        blocks = itertools.pairwise([*firsts, len(widths)])
        return sum((b - a) * int(widths[a]) ** 2 + ENTRIES_A_BLOCK for a, b in blocks)

    cuts = (c for n in range(MAX_BLOCKS) for c in itertools.combinations(range(1, 10), n))
    found = _cheapest_cuts(widths)
    assert cost(tuple(first for first, _ in found)) == min(cost((0, *cut)) for cut in cuts)
    assert all(width == widths[first] for first, width in found)


def test_nothing_is_promised_where_it_saves_little():
    """For graphs of equal size, the limits are as tight as the data."""
    assert likely_order_statistics(np.full(500, 20), 32, sg.Capacity(641, 1300, 33, 20), 0) == ()


@given(st.data())
@examples(60)
def test_exchanges_lose_nothing_and_break_nothing(data):
    sizes = np.array(
        data.draw(
            st.lists(st.tuples(st.integers(1, 40), st.integers(0, 80)), min_size=2, max_size=40)
        )
    )
    tight = sg.Capacity(131, 262, 25, 40, order_statistics=((0, 40), (1, 20), (3, 10)))
    cuts = np.arange(3, len(sizes), 3)
    batches = [(0, part) for part in np.split(np.arange(len(sizes)), cuts)]
    bounds = tight.order_statistics
    before = [(len(ids), kept(sizes[ids, 0].tolist(), bounds)) for _, ids in batches]
    mended = exchange_graphs(batches, sizes, [tight])
    after = [(len(ids), kept(sizes[ids, 0].tolist(), bounds)) for _, ids in batches]
    assert [count for count, _ in before] == [count for count, _ in after]
    changes = [(then, now) for (_, then), (_, now) in zip(before, after, strict=True)]
    assert all(now or not then for then, now in changes)
    assert sum(now and not then for then, now in changes) == mended
    assert np.array_equal(np.sort(np.concatenate([i for _, i in batches])), np.arange(len(sizes)))
    assert all((sizes[ids].sum(axis=0) <= tight.size_limits).all() for _, ids in batches)
