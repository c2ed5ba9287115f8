"""Packs kept in a plan: made once, saved in its file, and dealt to anyone with the same graphs."""

from __future__ import annotations

import numpy as np
import pytest
from support.packing_problems import alike, load

from staticgraph.epochs.batcher import Batcher
from staticgraph.files import document
from staticgraph.packing import pack_histogram
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.plan import BucketPlan, sizes_of


@pytest.fixture(scope="module", autouse=True)
def scipy():
    pytest.importorskip("scipy")


@pytest.fixture(scope="module")
def sizes():
    return sizes_of(alike("qm9", 3000))


@pytest.fixture(scope="module")
def plan(sizes):
    return plan_buckets(sizes, graphs=5, num_buckets=2, effort="best", time_limit=100.0)


def ids_of(batcher: Batcher, epoch: int) -> list[list[int]]:
    return [batch.ids.tolist() for batch in batcher.epoch(epoch)]


def test_a_plan_keeps_packs_that_are_valid_and_no_more_than_fast_ones(sizes, plan):
    assert len(plan.packings) == len(plan.capacities) == 2
    for packing in plan.packings:
        packing.check()
        fast = pack_histogram(packing.histogram, packing.limits, max_graphs=packing.max_graphs)
        assert packing.proven <= packing.num_packs <= fast.num_packs
    packs = sum(packing.num_packs for packing in plan.packings)
    assert f"{packs:,} packs are kept" in plan.note
    rows = sum(
        p.num_packs * c.nodes
        for p in plan.packings
        for c in plan.capacities
        if c.size_limits == tuple(p.limits.tolist())
    )
    assert plan.efficiency[0] == pytest.approx(sizes[:, 0].sum() / rows)


def test_the_file_gives_every_rank_the_same_batches_as_the_plan(sizes, plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    loaded = BucketPlan.load(tmp_path / "plan.json")
    assert loaded == plan
    packs = sum(packing.num_packs for packing in plan.packings)
    for epoch in (0, 1):
        made = [ids_of(Batcher(sizes, p, exact=False, shuffle=True), epoch) for p in (plan, loaded)]
        assert made[0] == made[1]
        assert len(made[0]) == packs
        assert sorted(g for ids in made[0] for g in ids) == list(range(len(sizes)))
    shares = [
        Batcher(sizes, loaded, exact=False, window=None, shuffle=True, rank=r, world_size=2)
        for r in (0, 1)
    ]
    dealt = [g for share in shares for ids in ids_of(share, 3) for g in ids]
    assert sorted(dealt) == list(range(len(sizes)))


def test_a_window_is_a_stream_whatever_the_plan_keeps(sizes, plan):
    streamed = Batcher(sizes, plan, exact=False, window=8)
    assert len(ids_of(streamed, 0)) > sum(packing.num_packs for packing in plan.packings)
    assert Batcher(sizes, BucketPlan.of(plan.capacities), exact=False).window == 8
    assert Batcher(sizes, plan, exact=False).window is None


def test_other_graphs_are_packed_anew(sizes, plan):
    some = np.arange(0, len(sizes), 2)
    batcher = Batcher(sizes, plan, indices=some, exact=False, window=None)
    assert sorted(g for ids in ids_of(batcher, 0) for g in ids) == some.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["counts"].__setitem__(0, p["counts"][0] + 1), "missing or packed twice"),
        (lambda p: p["limits"].__setitem__(0, 1), "exceeds a limit"),
        (lambda p: p["starts"].pop(), "make the plan again"),
        (lambda p: p["types"].__setitem__(0, 10**6), "make the plan again"),
    ],
)
def test_packs_that_were_changed_are_refused(plan, tmp_path, change, message):
    path = tmp_path / "plan.json"
    values = plan.to_dict()
    change(values["packings"][0])
    document.save(path, values, indent=2)
    with pytest.raises(ValueError, match=message):
        BucketPlan.load(path)


def test_exact_batches_have_no_packs_to_keep():
    with pytest.raises(ValueError, match="drawn again each epoch: give graphs="):
        plan_buckets(load("esol"), 32, effort="best")
