"""Steps that differ slightly between capacities are matched by the operations they share; layers
that lay out their graphs in several blocks are predicted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.own_blocks import POOLS, Pooled
from support.parity import STORE, loss
from support.probed_tasks import POINTS, squared
from torch import nn
from torch_geometric.nn import GPSConv

from staticgraph import models
from staticgraph.memory.counts import counts_of
from staticgraph.memory.model import MemoryModel
from staticgraph.probing.allocator import AllocatorReader, ProfilerAllocator
from staticgraph.probing.fake_tensors import FakeTensorReader
from staticgraph.probing.fitting import match_moments
from staticgraph.probing.probe import probe
from staticgraph.probing.reading import GivenReader, Probed, Reading
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject


def reading(operations, moments):
    return Reading(
        int(max(moments)),
        moments=np.array(moments, dtype=np.float64),
        operations=np.array(operations, dtype=np.int64),
    )


def test_extra_operations_fold_into_the_largest_moment_before_the_next_landmark():
    one = reading([1, 7, 2, 3], [10, 20, 5, 30])
    two = reading([1, 7, 7, 7, 2, 3], [11, 21, 22, 20, 6, 31])
    assert [list(m) for m in match_moments([one, two])] == [[20, 5, 30], [22, 6, 31]]


@pytest.mark.parametrize(
    "other",
    [Reading(5), reading([2, 1, 9], [1, 1, 1]), reading([8, 8, 8], [1, 2, 3])],
    ids=["no moments", "another order", "nothing in common"],
)
def test_steps_that_cannot_be_matched_give_none(other):
    assert match_moments([reading([1, 2, 9], [1, 2, 3]), other]) == [None, None]


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


def error_of(model, loss, schema, memory, capacity):
    with FakeTensorReader().open(Probed(Subject(model, loss), schema)) as read:
        return abs(memory.fit.predict(capacity) / read(capacity).step - 1)


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(POOLS, reverse=True))
def test_pools_are_predicted_where_graphs_are_larger_than_any_probed(name, tmp_path):
    """One block at all capacities that the data need; several at twice and four times the largest
    graph, with rows and graphs varied independently."""
    torch.manual_seed(0)
    model = Pooled(8, 2, POOLS[name]())
    memory = probe(model, STORE, loss=loss)
    assert memory.fit.worst < 0.03
    for capacity in (
        Capacity(2_176, 5_824, 320, 24),
        Capacity(4_352, 11_648, 1_280, 48),
        Capacity(9_000, 9_001, 1_500, 30),
    ):
        assert error_of(model, loss, STORE.schema, memory, capacity) < 0.03
    memory.save(tmp_path / "memory.json")
    assert MemoryModel.load(tmp_path / "memory.json") == memory


@pytest.mark.slow
@pytest.mark.release
def test_pools_are_predicted_where_some_probes_have_several_blocks(esol):
    """Some of ESOL's probes have several blocks; no single sum explains twice the largest graph."""
    torch.manual_seed(0)
    model = Pooled(9, 1, POOLS["multiset"]())
    memory = probe(model, esol, loss=squared)
    assert memory.fit.worst < 0.03
    for capacity in (Capacity(18_712, 36_764, 1_280, 82), Capacity(7_000, 14_400, 513, 55)):
        assert error_of(model, squared, esol.schema, memory, capacity) < 0.03


@pytest.mark.slow
def test_explicit_weights_of_several_blocks_are_predicted(esol):
    """A layer with dropout keeps the weights of each block; the probes have one block or several,
    and the order statistics of a plan change the blocks."""
    torch.manual_seed(0)
    model = models.build("gps", esol, hidden=16, layers=1)
    for module in model.modules():
        if isinstance(module, GPSConv):
            module.attn.dropout = 0.5
    memory = probe(model, esol, loss=squared)
    ranked = Capacity(3_000, 6_000, 128, 60, order_statistics=((0, 60), (8, 40), (64, 20)))
    for capacity in (Capacity(18_712, 36_764, 1_280, 82), ranked):
        assert error_of(model, squared, esol.schema, memory, capacity) < 0.03


def test_a_reader_of_peaks_is_asked_for_more_capacities():
    """Explicit weights in one block at all probes and several beyond; only peaks are reported."""

    def peak(capacity: Capacity) -> int:
        counts = counts_of(capacity, "auto")
        return int(
            1_000
            + 80 * counts["nodes"]
            + 9 * counts["places"]
            + 4 * counts["pairs"]
            + 8 * counts["widest"]
        )

    memory = probe(nn.Linear(2, 2), STORE, reader=GivenReader(peak))
    assert memory.fit.form == "blocks"
    assert memory.fit.layout == "auto"
    wide = Capacity(9_000, 20_000, 1_500, 40)
    assert memory.fit.predict(wide) == pytest.approx(peak(wide), rel=0.01)
