"""Steps that differ slightly between capacities are matched by the operations they share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.probed_tasks import POINTS
from torch_geometric.nn import GPSConv

from staticgraph import models
from staticgraph.memory.fit import Fit
from staticgraph.probing.aligned import aligned
from staticgraph.probing.allocator import AllocatorReader
from staticgraph.probing.fake_tensors import FakeTensorReader
from staticgraph.probing.layouts import more
from staticgraph.probing.probe import probe
from staticgraph.probing.profiler import ProfilerAllocator
from staticgraph.probing.reading import Probed, Reading
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject


def reading(operations, moments):
    return Reading(
        int(max(moments)),
        moments=np.array(moments, dtype=np.float64),
        operations=np.array(operations, dtype=np.int64),
    )


def test_equal_steps_match_one_by_one():
    found = aligned([reading([1, 2, 1], [3, 5, 4]), reading([1, 2, 1], [6, 9, 8])])
    assert [list(m) for m in found] == [[3, 5, 4], [6, 9, 8]]


def test_extra_operations_fold_into_the_largest_moment_before_the_next_landmark():
    one = reading([1, 7, 2, 3], [10, 20, 5, 30])
    two = reading([1, 7, 7, 7, 2, 3], [11, 21, 22, 20, 6, 31])
    assert [list(m) for m in aligned([one, two])] == [[20, 5, 30], [22, 6, 31]]


def test_what_comes_before_the_first_landmark_counts_too():
    one, two = reading([7, 1, 2], [9, 4, 5]), reading([7, 7, 1, 2], [3, 8, 4, 5])
    assert [max(m) for m in aligned([one, two])] == [9, 8]
    begins = reading([1, 2], [3, 6])
    assert [list(m) for m in aligned([one, begins])] == [[9, 5], [3, 6]], "into the first part"


@pytest.mark.parametrize(
    "other",
    [Reading(5), reading([2, 1, 9], [1, 1, 1]), reading([8, 8, 8], [1, 2, 3])],
    ids=["no moments", "another order", "nothing in common"],
)
def test_steps_that_cannot_be_matched_give_none(other):
    assert aligned([reading([1, 2, 9], [1, 2, 3]), other]) == [None, None]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dropout", [0.5, 0.0])
def test_capacities_that_do_not_tell_layouts_apart_are_followed_by_one_that_does(esol, dropout):
    """At 60 nodes per graph, blocks by size are one block; at twice that, there are several that
    take a third of the memory. Attention is fused, or has explicit weights with dropout."""
    torch.manual_seed(0)
    model = models.build("gps", esol, hidden=16, layers=1)
    for module in model.modules():
        if isinstance(module, GPSConv):
            module.attn.dropout = dropout
    subject = Probed(Subject(model, lambda out, batch: (out - batch.y).square()), esol.schema)
    memory = probe(model, esol, loss=subject.subject.loss, capacities=POINTS)
    assert memory.fit.layout == "auto"
    with FakeTensorReader().open(subject) as read:
        for wide in (Capacity(900, 1_850, 24, 120), Capacity(1_800, 3_700, 80, 110)):
            assert memory.fit.predict(wide) == pytest.approx(read(wide).step, rel=0.03)


def test_more_is_read_only_where_blocks_matter_and_are_not_told_apart():
    near = [Capacity(300, 620, 16, 60), Capacity(440, 900, 24, 45)]
    found = Fit("attention", ((0.0, 0.0, 0.0, 0.0, 8.0, 4.0),))
    assert len(more(found, near)) > 2
    assert not more(found, [*near, Capacity(880, 1_800, 96, 180)]), "it has several blocks"
    assert not more(found._replace(planes=((1.0, 2.0, 3.0, 4.0, 0.0, 0.0),)), near)


def test_attention_in_blocks_by_size_is_found_and_predicted(hiv):
    """The number of blocks depends on the capacity; the fit counts their places, not G * M."""
    model = models.build("gps", hiv, hidden=16, layers=1)
    task = Probed(Subject(model, lambda out, batch: (out - batch.y).square()), hiv.schema)
    capacities = [
        Capacity(400 * k, 860 * k, 14 * k, m) for k, m in ((1, 90), (2, 120), (3, 60), (4, 200))
    ]
    capacities += [
        Capacity(1200, 2580, 60, 150),
        Capacity(1200, 3900, 42, 150),
        Capacity(1800, 2580, 42, 100),
        Capacity(1800, 2580, 42, 220),
    ]
    held_out = Capacity(3700, 8000, 130, 180)
    memory = probe(model, hiv, loss=task.subject.loss, capacities=capacities, held_out=held_out)
    with AllocatorReader(ProfilerAllocator()).open(task) as read:
        measured = read(held_out).step
    assert memory.fit.layout == "auto"
    assert memory.fit.form == "linear"
    assert memory.fit.predict(held_out) == pytest.approx(measured, rel=0.03)
