"""A compiled probe finds what layers need: widths of their own, and several blocks in turn."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.own_blocks import POOLS, Pooled, Ranked
from support.parity import STORE, loss

import staticgraph as sg
from staticgraph.dryrun import compiled_probe
from staticgraph.dryrun.report import BucketRun
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing.fake_tensors import FakeTensorReader
from staticgraph.probing.reading import Probed
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject

# The largest probe is (2,176, 5,824, 320) with 12 nodes in the largest graph. These are as large,
# twice and four times as large, with graphs as large as the probe's and larger.
ASKED = [
    Capacity(2_176, 5_824, 320, 24),
    Capacity(4_352, 11_648, 640, 24),
    Capacity(8_704, 23_296, 1_280, 12),
    Capacity(8_704, 23_296, 1_280, 48),
]


def joined(model):
    """Open a reader of steps as a compiler might write them: every two operations become one that
    keeps one result, and nothing says which layer it belongs to."""
    opened = FakeTensorReader("cuda").open(Probed(Subject(model, loss), STORE.schema))

    def run(read, capacity: Capacity) -> BucketRun:
        found = read(capacity)
        live = np.maximum.reduceat(found.moments, np.arange(0, len(found.moments), 2)) * 0.6
        names = [f"joined_{number}" for number in found.operations[::2]]
        moments = tuple(zip(["forward"] * len(live), names, live.astype(int).tolist(), strict=True))
        return BucketRun("default", 0, str(capacity), "step", moments=moments)

    return opened, run


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("made", "floors"),
    [(lambda: Ranked(20), [20]), (lambda: Pooled(8, 2, POOLS["multiset"]()), [])],
    ids=["floor", "blocks"],
)
def test_models_of_own_widths_and_blocks_are_predicted(made, floors, monkeypatch):
    torch.manual_seed(0)
    model = made()
    opened, run = joined(model)
    with opened as read:

        class Child:
            def __init__(self, target):
                self.target = target

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def dry_run(self, request):
                (capacity,) = BucketPlan.load(request["plan"]).capacities
                return SimpleNamespace(runs=[run(read, capacity)])

        monkeypatch.setattr(compiled_probe, "Child", Child)
        memory = sg.probe(model, STORE, like="cuda", compiled=True, loss=loss)
        assert [piece.above for piece in memory.fit.pieces] == floors
        for capacity in ASKED:
            there = compiled_probe.reading_of(run(read, capacity), updates=False).step
            assert memory.fit.predict(capacity) == pytest.approx(there, rel=0.03)
