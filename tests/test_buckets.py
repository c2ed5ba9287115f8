"""Plans: what they hold, as a file, and against other data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from staticgraph.buckets import BucketPlan, plan_buckets
from staticgraph.errors import PlanMismatch
from staticgraph.sizes import Capacity, GraphSize, SizeHistogram

SIZES = np.array([[3, 4], [5, 8], [9, 20], [4, 6], [4, 6]])


def test_every_graph_fits_alone_and_the_sizes_differ():
    plan = plan_buckets(SIZES, 2)
    (capacity,) = plan.capacities
    assert all(capacity.holds(GraphSize(*row)) for row in SIZES.tolist())
    assert len({capacity.nodes, capacity.edges, capacity.graphs}) == 3
    assert capacity.graph_limit >= 2


def test_round_trip_through_a_file(tmp_path):
    plan = plan_buckets(SIZES, 2)
    plan.save(tmp_path / "plan.json")
    assert BucketPlan.load(tmp_path / "plan.json") == plan


def test_a_file_of_another_version_or_kind_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    values = plan_buckets(SIZES, 2).to_dict()
    path.write_text(json.dumps({**values, "version": 99}))
    with pytest.raises(ValueError, match=r"plan\.json: the plan has version 99"):
        BucketPlan.load(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a plan"):
        BucketPlan.load(path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"plan\.json"):
        BucketPlan.load(path)
    del values["capacities"]
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="capacities"):
        BucketPlan.load(path)


def test_other_data_is_refused_with_what_changed():
    plan = plan_buckets(SIZES, 2)
    plan.check(SIZES[::-1])
    plan.check(SizeHistogram.from_sizes(SIZES))
    plan.check(plan.digest)
    BucketPlan.of([(5, 6, 7)]).check(SIZES)
    with pytest.raises(PlanMismatch, match=r"5 graphs then, 6 now; at most 9 nodes a graph then"):
        plan.check(np.concatenate([SIZES, [[30, 4]]]))
    with pytest.raises(PlanMismatch, match="other sizes between"):
        plan.check(np.concatenate([SIZES[:-1], [[4, 7]]]))
    with pytest.raises(PlanMismatch, match="digest"):
        plan.check("0" * 16)


def test_bucket_for_is_the_first_that_holds():
    plan = BucketPlan.of([(40, 80, 9), Capacity(20, 40, 5, 10)])
    assert plan.bucket_for(19, 40, 4, 10) == 0
    assert plan.bucket_for(19, 40, 4, 11) == 1
    assert plan.bucket_for(20, 1, 1) == 1
    assert plan.bucket_for(19, 41, 4, 3) == 1
    assert plan.bucket_for(19, 40, 5, 3) == 1
    assert plan.bucket_for(40, 1) is None


def test_a_batch_size_needs_room():
    with pytest.raises(ValueError, match="batch_size=9, but the largest bucket takes 8 graphs"):
        BucketPlan.of([(40, 80, 9)], batch_size=9)
    with pytest.raises(ValueError, match="at least one capacity"):
        BucketPlan.of([])
    with pytest.raises(ValueError, match="empty"):
        plan_buckets(np.empty((0, 2), dtype=np.int64), 4)
