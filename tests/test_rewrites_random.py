"""Random forwards in mode ``fused`` against plain PyG: gathers, sums, norms, changes in place,
views and regions without gradients, in every form that torch has for them."""

from __future__ import annotations

import copy

import pytest
from support.random_forward import RandomForward, runs
from support.rewritten import difference, in_plain_pyg, seeded

# Forwards that once gave other numbers: a shared norm whose statistics were updated out of turn, a
# dropout that drops nothing and so is its operand, a change in place dropped as unread.
FOUND = (67, 73, 76, 203, 263, 274, 284, 292, 305, 368, 381, 392)


def check(seed, store):
    model = seeded(lambda: RandomForward(seed))
    trial = copy.deepcopy(model)
    try:
        possible = runs(trial, in_plain_pyg(trial, store))
    except RuntimeError:
        possible = False
    if not possible:
        pytest.skip("plain PyG does not differentiate this forward")
    largest, _ = difference(model, store)
    assert largest <= 1e-9, model.steps


@pytest.mark.parametrize("seed", FOUND)
def test_forwards_that_once_failed(seed, esol):
    check(seed, esol)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_other_forwards(seed, esol):
    check(seed, esol)
