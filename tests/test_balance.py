"""How evenly ranks are filled, computed from sizes and plan alone."""

from __future__ import annotations

import numpy as np
import pytest

import staticgraph as sg
from staticgraph.epochs.balance import balance_of, balance_of_plan


def test_by_hand():
    """Two steps of two ranks: 10 and 6 nodes, then 4 and none."""
    rows = np.array([[[2, 10, 8], [2, 6, 8]], [[1, 4, 2], [0, 0, 0]]])
    found = balance_of(rows)
    assert found.efficiency == pytest.approx(((8 + 2) / (10 + 4), (8 + 1) / (8 + 2)))
    assert found.full_efficiency == pytest.approx((0.8, 1.0))
    assert (found.steps, found.full, found.padded) == (2, 1, 0.25)


def test_one_rank_waits_for_nobody(hiv):
    plan = sg.plan_buckets(hiv, 128)
    assert balance_of_plan(hiv, plan, [1])[0].efficiency == (1.0, 1.0)


def test_ranks_of_128_molecules_are_even(hiv):
    """The mean rank's real rows over the fullest rank's: at least 97% for any number of ranks."""
    train = hiv.splits["train"]
    plan = sg.plan_buckets(hiv, 128, indices=train)
    sizes = np.tile(hiv.sizes[train][:, :2], (16, 1))
    for found in balance_of_plan(sizes, plan, [8, 64, 512], shuffle=True):
        assert found.full > 0
        assert min(found.full_efficiency) >= 0.97


def test_nothing_to_share():
    found = balance_of(np.zeros((0, 4, 3), dtype=np.int64))
    assert (found.steps, found.padded) == (0, 0.0)
    assert np.isnan(found.efficiency).all()
