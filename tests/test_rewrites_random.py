"""Random forwards in mode ``fused`` against plain PyG: gathers, sums, norms, in-place changes,
views and regions without gradients, in all of torch's spellings."""

from __future__ import annotations

import copy

import pytest
from support.random_forward import RandomForward, runs
from support.rewritten import difference, in_plain_pyg, seeded

# Forwards that once gave other numbers: a shared norm with statistics updated out of order, a
# dropout that drops nothing and so returns its operand, an in-place change removed as unread.
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", FOUND)
def test_forwards_that_once_failed(seed, esol):
    check(seed, esol)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_other_forwards(seed, esol):
    check(seed, esol)
