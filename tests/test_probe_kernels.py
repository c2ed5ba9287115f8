"""The memory of models that run on kernels: every capacity of a probe takes the same path, that of
large batches on the target device."""

from __future__ import annotations

import pytest
import torch

import staticgraph as sg
from staticgraph import models
from staticgraph.nn.context.choosing import any_size, choosing, device_type
from staticgraph.nn.fused import linear as fused
from staticgraph.probing.allocator import AllocatorReader
from staticgraph.probing.profiler import ProfilerAllocator
from staticgraph.probing.reading import Probed
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject

# At 32 columns a layer gains from 1,024 rows on: layers over nodes have that many here, layers over
# graphs do not.
AT = (Capacity(1276, 2626, 160, 41), Capacity(9356, 18382, 640, 41))


def squared(out, batch):
    return (out - batch.y).square()


def task_of(store, name: str, **options) -> Probed:
    torch.manual_seed(0)
    model = sg.convert(models.build(name, store, hidden=32, layers=2), kernels=True)
    optimizer = torch.optim.Adam(model.parameters())
    return Probed(Subject(model, squared, optimizer, **options), store.schema)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gps", "gine"])
def test_fused_layers_are_probed_and_predicted(esol, name, monkeypatch):
    """Compared with real steps whose layers choose by their own sizes; the probes lie on both sides
    of the size from which the CPU's fused product gains."""
    task = task_of(esol, name)
    memory = sg.probe(task.subject, esol)
    assert memory.fit.residual < 0.01
    monkeypatch.setattr(fused, "any_size", lambda: False)
    with AllocatorReader(ProfilerAllocator()).open(task) as read:
        for capacity in AT:
            found = read(capacity)
            assert abs(memory.fit.predict(capacity) / found.step - 1) < 0.03


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gps", "gine", "gat", "sage"])
def test_counted_as_on_cuda_layers_choose_as_they_do_there(esol, name):
    """On CUDA GPS attends by a kernel over node rows, on the CPU in blocks; GAT's is for CUDA."""
    memory = sg.probe(task_of(esol, name).subject, esol, like="cuda")
    assert memory.fit.form == "linear"
    assert memory.fit.residual < 0.01
    if name == "gps":
        assert sg.probe(task_of(esol, name).subject, esol, like="cpu").fit.form == "series"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("like", "converted"), [("cpu", False), ("cuda", False), ("cuda", True), ("cpu", True)]
)
def test_kernels_are_put_under_a_model_for_as_long_as_it_is_probed(esol, like, converted):
    """The probe reads the step of a converted model and leaves the model as it was."""

    def made():
        torch.manual_seed(0)
        model = models.build("gine", esol, hidden=32, layers=1)
        model = sg.convert(model) if converted else model
        return model, torch.optim.Adam(model.parameters())

    def asked(model, optimizer, **options):
        return sg.probe(model, esol, loss=squared, optimizer=optimizer, like=like, **options)

    def state():
        return [
            (m, type(m), dict(vars(m)), dict(m._buffers), set(m._non_persistent_buffers_set))
            for m in model.modules()
        ]

    model, optimizer = made()
    before = state()
    without = asked(model, optimizer)
    found = asked(model, optimizer, kernels=True)
    assert state() == before
    assert asked(model, optimizer) == without
    other, its = made()
    assert asked(sg.convert(other, kernels=True), its) == found
    assert found != without


def test_only_what_is_looked_at_is_chosen_for():
    x, weight = torch.ones(9, 4), torch.ones(4, 4)
    assert fused.linear_obstacle(x, weight) == "too small to gain"
    with choosing("cuda"):
        assert (device_type(x), any_size()) == ("cuda", True)
        assert fused.linear_obstacle(x, weight) is None
        with choosing():
            assert (device_type(x), any_size()) == ("cpu", True)
        assert device_type(x) == "cuda"
    assert (device_type(x), any_size()) == ("cpu", False)
