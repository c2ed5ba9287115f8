"""Plans: what they hold, as a file, and checked against other data."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.packing_problems import SETS, load

from staticgraph.epochs.batcher import Batcher
from staticgraph.errors import PlanMismatch
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.cost import StepCost
from staticgraph.plans.limits import (
    efficiency_map,
    limits_for_efficiency,
    limits_for_graphs,
)
from staticgraph.plans.plan import BucketPlan
from staticgraph.plans.several import choose_buckets, knee
from staticgraph.schema import Field, Schema
from staticgraph.sizes.capacity import Capacity, GraphSize
from staticgraph.sizes.histogram import SizeHistogram

# Message passing with dense attention, 4 heads in 64 channels: a pair costs as much as an edge.
WITH_ATTENTION = StepCost(pair=0.25)


SIZES = np.array([[3, 4], [5, 8], [9, 20], [4, 6], [4, 6]])


def test_a_file_of_another_version_or_kind_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    values = plan_buckets(SIZES, 2).to_dict()
    path.write_text(json.dumps({**values, "version": 99}))
    with pytest.raises(ValueError, match=r"plan\.json: the plan has version 99"):
        BucketPlan.load(path)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("note", True, "note=True: give a text"),
        ("strategy", 3, "strategy=3: give a text"),
        ("digest", 7, "digest=7: give a text"),
        ("versions", (("torch", 2),), "torch=2: give a text"),
        ("maxima", (12, 2.5), "maxima=2.5: give a whole number"),
        ("efficiency", ("most",), "efficiency='most': give a number"),
    ],
)
def test_a_plan_with_a_value_of_another_kind_is_refused(name, value, says):
    """A file that someone wrote, or changed with its checksum."""
    with pytest.raises(ValueError, match=says):
        BucketPlan((Capacity(50, 110, 8),), **{name: value})


def test_other_data_is_refused_with_what_changed():
    plan = plan_buckets(SIZES, 2)
    plan.check(SIZES[::-1])
    plan.check(SizeHistogram.from_sizes(SIZES))
    plan.check(plan.digest)
    BucketPlan.of([(5, 6, 7)]).check(SIZES)
    with pytest.raises(PlanMismatch, match=r"5 graphs then, 6 now; at most 9 nodes per graph then"):
        plan.check(np.concatenate([SIZES, [[30, 4]]]))
    with pytest.raises(PlanMismatch, match="other sizes between"):
        plan.check(np.concatenate([SIZES[:-1], [[4, 7]]]))
    with pytest.raises(PlanMismatch, match="digest"):
        plan.check("0" * 16)


def test_a_batch_size_needs_room():
    with pytest.raises(ValueError, match="batch_size=9, but the largest bucket takes 8 graphs"):
        BucketPlan.of([(40, 80, 9)], batch_size=9)
    with pytest.raises(ValueError, match="at least one capacity"):
        BucketPlan.of([])
    with pytest.raises(ValueError, match="empty"):
        plan_buckets(np.empty((0, 2), dtype=np.int64), 4)


class Store:
    """The part of a store that a plan needs."""

    sizes = np.array([[3, 4], [5, 8], [9, 20], [4, 6]])
    schema = Schema((Field("x", "node", (9,), "float32"),))


def test_a_plan_of_a_store_carries_its_fields(tmp_path):
    plan = plan_buckets(Store(), 2)
    assert plan.schema == Store.schema
    plan.save(tmp_path / "plan.json")
    assert BucketPlan.load(tmp_path / "plan.json").schema == Store.schema
    text = (tmp_path / "plan.json").read_text()
    assert '"max_graph_nodes": 9' in text
    assert dict(plan.versions)["numpy"] == np.__version__


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 900)), min_size=1, max_size=60),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 2),
)
def test_every_plan_holds_every_graph_alone(rows, batch_size, num_buckets):
    sizes = np.array(rows, dtype=np.int64)
    plan = plan_buckets(sizes, batch_size, num_buckets=num_buckets, graphs=8)
    for nodes, edges in rows:
        assert any(c.holds(GraphSize(nodes, edges)) for c in plan.capacities)
    assert len(plan.capacities) <= (num_buckets or 4)


@pytest.mark.parametrize("named", [False, True], ids=["all train", "indices"])
def test_a_batch_of_more_graphs_than_there_are_is_all_of_them(named):
    """No rows for graphs that do not exist; as with PyG's loader, an epoch is one batch."""
    sizes = np.tile(SIZES, (40, 1))
    indices = np.arange(150) if named else None
    there_are = 150 if named else 200
    plan = plan_buckets(sizes, 100_000, indices=indices)
    most = plan_buckets(sizes, there_are, indices=indices)
    assert plan.capacities == most.capacities
    assert plan.batch_size == there_are
    assert min(plan.efficiency) > 0.85
    assert plan.note == (f"batch_size=100,000 was asked, a batch is all of {there_are} graphs")
    assert not most.note
    (batch,) = Batcher(sizes, plan, indices=indices).epoch(0)
    assert len(batch.ids) == there_are


@pytest.mark.parametrize("num_buckets", [1, 2, None])
def test_packs_of_more_graphs_than_there_are_have_slots_for_those_there_are(num_buckets):
    sizes = np.tile(SIZES, (40, 1))
    plan = plan_buckets(sizes, num_buckets=num_buckets, graphs=100_000)
    assert max(capacity.graphs for capacity in plan.capacities) <= 1.25 * 201 + 1
    assert all(0.5 < share <= 1 for share in plan.efficiency)
    batches = Batcher(sizes, plan, exact=False).epoch(0)
    assert sum(len(batch.ids) for batch in batches) == 200


def test_several_buckets_and_exact_batches_do_not_go_together():
    with pytest.raises(ValueError, match="num_buckets=3 with exact batches"):
        plan_buckets(SIZES, 2, num_buckets=3)


def test_a_bucket_that_the_device_does_not_hold():
    with pytest.raises(ValueError, match="the device does not hold a bucket"):
        plan_buckets(SIZES, 2, fits=lambda capacity: capacity.nodes < 5)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("graphs", [32, 128])
def test_limits_chosen_for_so_many_graphs_fill_to_99_percent(name, graphs):
    histogram = load(name)
    choice = limits_for_graphs(histogram, graphs)
    choice.packing.check()
    assert choice.reached
    assert choice.packing.harmonic_mean >= 0.99
    held = histogram.num_graphs / choice.packing.num_packs
    assert held == pytest.approx(graphs, rel=0.1)
    capacity = choice.capacity
    assert capacity.node_limit >= choice.limits[0]
    assert capacity.graph_limit >= choice.packing.graphs.max()


def test_what_keeps_so_many_graphs_from_filling_a_pack_is_said():
    giant = SizeHistogram(np.array([[1, 1], [900, 900]]), np.array([20, 1]))
    choice = limits_for_graphs(giant, 4)
    assert not choice.reached
    assert "the largest graph alone has 900 nodes" in choice.reason


def test_limits_chosen_for_an_efficiency_are_the_first_of_a_scan():
    """The paper's limits (30, 62) on PCQM4Mv2, found from the target alone."""
    histogram = load("pcqm4mv2_train_APPROX")
    choice = limits_for_efficiency(histogram, 0.98)
    assert choice.limits.tolist() == [30, 62]
    assert not limits_for_efficiency(histogram, 0.98, steps=3).reached
    with pytest.raises(ValueError, match="between 0 and 1"):
        limits_for_efficiency(histogram, 98)


def test_the_map_is_best_where_the_ratio_is_that_of_the_totals():
    histogram = load("pcqm4mv2_train_APPROX")
    shown = efficiency_map(histogram, range(20, 40, 2), range(40, 84, 2))
    nodes, edges, value = shown.best
    assert value > 0.98
    assert edges / nodes == pytest.approx(histogram.totals[1] / histogram.totals[0], rel=0.05)
    assert np.isnan(shown.harmonic[0, 0])  # a graph with 42 edges does not fit


def test_several_buckets_pay_under_attention_and_never_cost_more():
    histogram = load("tu_PROTEINS")
    choices = choose_buckets(histogram, 4, graphs=32, cost=WITH_ATTENTION)
    costs = [choice.cost for choice in choices]
    assert costs == sorted(costs, reverse=True)
    assert costs[1] < 0.2 * costs[0]
    assert knee(choices) >= 1
    for choice in choices:
        packed = sum(b.packing.histogram.num_graphs for b in choice.buckets)
        assert packed == histogram.num_graphs
        for bucket in choice.buckets:
            bucket.packing.check()
            assert bucket.packing.histogram.maxima[0] <= bucket.capacity.max_graph_nodes
    assert choices[-1].cost == sum(b.step_cost * b.packing.num_packs for b in choices[-1].buckets)


@pytest.mark.parametrize("named", [False, True], ids=["all train", "indices"])
@pytest.mark.parametrize("batch_size", [4, 32])
def test_a_few_giants_do_not_size_the_bucket_of_the_others(batch_size, named):
    """Five giants, each larger than the other 4,995 graphs together, are in at most five
    batches."""
    rng = np.random.default_rng(0)
    nodes = rng.integers(5, 30, 5000)
    nodes[rng.choice(5000, 5, replace=False)] = 100_000
    sizes = np.stack([nodes, 2 * nodes], axis=1)
    plan = plan_buckets(sizes, batch_size, indices=np.arange(5000) if named else None)
    small, whole = plan.capacities
    ordinary = sizes[nodes < 30]
    assert small.max_graph_nodes == 29
    assert small.nodes < 1.2 * batch_size * ordinary[:, 0].mean() + 29
    assert whole.max_graph_nodes == 100_000
    assert all(0.7 < share <= 1 for share in plan.efficiency)
    batcher = Batcher(sizes, plan, shuffle=True)
    for epoch in range(3):
        batches = batcher.epoch(epoch)
        in_whole = sum(batch.bucket == 1 for batch in batches)
        assert in_whole <= 5
        assert batcher.epoch_stats(epoch).split <= 1, "two giants may meet in a batch"
        np.testing.assert_array_equal(
            np.sort(np.concatenate([batch.ids for batch in batches])), np.arange(5000)
        )


@pytest.mark.parametrize(("giants", "batch_size"), [([5000], 16), ([5000, 4900], 16), ([5000], 64)])
def test_a_giant_in_a_small_data_set_takes_no_more_room_than_beside_ordinary_graphs(
    giants, batch_size
):
    nodes = np.append(np.random.default_rng(0).integers(10, 35, 100 * len(giants)), giants)
    plan = plan_buckets(np.stack([nodes, 2 * nodes], axis=1), batch_size)
    small, whole = plan.capacities
    assert small.nodes < 35 * batch_size
    assert whole.nodes < 5000 + 35 * batch_size
