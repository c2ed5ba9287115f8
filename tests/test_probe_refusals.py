"""How far a probe grows, what it refuses, and what its table says."""

from __future__ import annotations

import re

import pytest
import torch
from support.probed_tasks import POINTS, GivenReader, probed, squared, task_of
from torch import nn

from staticgraph.errors import ProbeFailed
from staticgraph.probing.allocator import AllocatorReader, ProfilerAllocator
from staticgraph.probing.fake_tensors import FakeTensorReader, resident_bytes
from staticgraph.probing.fit_readings import ascending
from staticgraph.probing.probe import probe, probe_capacities
from staticgraph.probing.step_reading import Probed, Reading
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.recordable_optimizer import make_recordable


def test_probe_sizes_grow_strictly(hiv):
    for graphs in (2, 8, 32):
        capacities, held_out = probe_capacities(hiv.sizes, graphs)
        costs = [c.nodes + c.edges + c.graphs * c.max_graph_nodes for c in capacities]
        assert costs == sorted(set(costs)), "each costlier than the one before"
        assert held_out.nodes >= 2 * max(c.nodes for c in capacities)
        assert max(c.edges for c in capacities) >= 9.9 * min(c.edges for c in capacities)
    assert ascending([POINTS[1], POINTS[0], POINTS[1]]) == POINTS[:2]


def test_memory_that_runs_out_makes_the_probe_smaller(esol):
    read = []

    def bytes_of(capacity):
        read.append(capacity)
        if capacity.nodes > 700:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
        return 10_000 + 300 * capacity.nodes + 40 * capacity.edges

    memory = probe(nn.Linear(1, 1), esol, reader=GivenReader(bytes_of))
    assert memory.predict(Capacity(100, 200, 5)) >= 10_000 + 30_000 + 8_000
    assert all(p.capacity.nodes <= 700 for p in memory.points)
    assert memory.fit.residual < 1e-9
    assert "memory ran out at" in memory.note or max(c.nodes for c in read) > 700


def test_a_capacity_that_is_held_out_is_not_fitted(esol):
    reader = GivenReader(lambda capacity: 10_000 + 300 * capacity.nodes + 40 * capacity.edges)
    memory = probe(nn.Linear(1, 1), esol, reader=reader, capacities=POINTS, held_out=POINTS[-1])
    assert memory.checked is not None
    assert memory.checked.capacity == POINTS[-1]
    assert POINTS[-1] not in [point.capacity for point in memory.points]


def test_a_probe_that_never_fits_says_so(esol):
    def bytes_of(capacity):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")

    with pytest.raises(
        ProbeFailed, match=r"not even the smallest probe fits.*CUBLAS.*reader='fake'"
    ):
        probe(nn.Linear(1, 1), esol, reader=GivenReader(bytes_of))


def test_any_other_error_passes_unchanged(esol):
    mine = ValueError("of the user's own")

    def forward(model, batch):
        raise mine

    task = task_of(esol, forward=forward)
    for reader in ("fake", AllocatorReader(ProfilerAllocator())):
        with pytest.raises(ValueError) as caught:
            probed(task, esol, reader=reader)
        assert caught.value is mine


def test_a_model_that_reads_data_is_not_answered_with_a_number(esol):
    """Only the optimizer's step count is provided; a size read from data would be made up."""

    def forward(model, batch):
        return model(batch.x, batch.edge_index, None, batch.batch, int(batch.batch.max()) + 1)

    with pytest.raises(Exception, match=r"[Dd]ata.?[Dd]ependent|_local_scalar_dense"):
        probed(task_of(esol, "gcn", forward=forward), esol)


def test_choices_are_checked(esol):
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="reader='gpu'; choose"):
        probe(model, esol, reader="gpu")
    with pytest.raises(ValueError, match=r"runs real steps.*cpu.*fake-cuda"):
        probe(model, esol, reader="cuda")
    with pytest.raises(ValueError, match="form="):
        probe(model, esol, form="cubic")
    with pytest.raises(ValueError, match="accumulate"):
        probe(model, esol, accumulate=0)
    foreign = torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=1.0)
    with pytest.raises(ValueError, match=r"parameter of shape \[3\] that the model has not"):
        probe(model, esol, loss=squared, optimizer=foreign)


def test_the_table_tells_measured_fitted_and_error(esol):
    given = GivenReader(lambda c: Reading(1000 * c.nodes + 10 * c.edges, update=500))
    text = str(probe(nn.Linear(1, 1), esol, reader=given))
    for word in ("measured", "fitted", "held out", "residual 0.00%", "held-out error 0.00%"):
        assert word in text
    assert re.search(r"1,000 nodes \+ 10 edges", text)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_an_optimizer_made_for_recording_is_read_without_its_device(esol, kind):
    """Fused, capturable, learning rate in a tensor: none of these change the bytes on a CPU."""
    model = task_of(esol).subject.model
    made = [kind(model.parameters(), lr=0.1) for _ in range(2)]
    make_recordable(made[1])
    assert all(group["fused"] for group in made[1].param_groups)
    plain, recorded = (Probed(Subject(model, squared, o), esol.schema) for o in made)
    assert resident_bytes(plain.subject) == resident_bytes(recorded.subject)
    with FakeTensorReader().open(plain) as one, FakeTensorReader().open(recorded) as other:
        assert one(POINTS[0]).step == other(POINTS[0]).step
