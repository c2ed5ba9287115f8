"""The probe's predictions against what the profiler saw the CPU allocate."""

from __future__ import annotations

import pytest
import torch
from support.probed_tasks import HELD_OUT, POINTS, measured, probed, squared, task_of
from torch import nn
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import dropout_edge, to_dense_batch

import staticgraph as sg
from staticgraph import models
from staticgraph.nn.context.dense_layout import DenseLayout
from staticgraph.probing.fake_tensors import FakeTensorReader, resident_bytes
from staticgraph.probing.step_reading import Probed
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject


# Every second case has another model or another option than those before it.
@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("name", "optimizer", "options"),
    [
        ("gine", "adam", {}),
        ("gcn", "adamw", {}),
        ("gat", "sgd", {}),
        ("gine", "momentum", {"accumulate": 2}),
        ("gcn", "adam", {"autocast": torch.bfloat16, "accumulate": 3}),
        ("gps", "adam", {}),
        ("gps", "adamw", {"autocast": torch.bfloat16}),
        ("gat", "adam", {"autocast": torch.bfloat16}),
    ],
)
def test_the_prediction_is_what_the_cpu_allocates(esol, name, optimizer, options):
    """At more than twice the largest probed capacity, within 3% (the fit has no slack to hide)."""
    task = task_of(esol, name, optimizer, **options)
    memory = probed(task, esol)
    assert all(2 * c.nodes <= HELD_OUT.nodes for c in POINTS)
    assert memory.fit.form == "linear", "fused attention and message passing are linear"
    found = measured(task, HELD_OUT)
    assert memory.fit.predict(HELD_OUT) == pytest.approx(found.step, rel=0.03)
    assert memory.update_bytes == pytest.approx(found.update, rel=0.03)


class ExplicitAttention(nn.Module):
    """Softmax over explicit weights: ``[G, M, M]`` in memory."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(9, 3 * width), nn.Linear(width, 1)

    def forward(self, batch):
        layout = DenseLayout.of(batch)
        q, k, v = layout.to_dense(self.inward(batch.x.float())).chunk(3, dim=-1)
        weights = (q @ k.transpose(1, 2)).softmax(dim=-1)
        return self.outward((weights @ v).sum(dim=1))


def test_explicit_attention_comes_out_quadratic_in_the_largest_graph(esol):
    model = ExplicitAttention(8)
    task = Probed(Subject(model, squared, torch.optim.Adam(model.parameters())), esol.schema)
    memory = probed(task, esol)
    assert memory.fit.form == "attention"
    assert memory.binding(Capacity(900, 1_850, 50, 250)) == "attention"
    found = measured(task, HELD_OUT)
    assert memory.fit.predict(HELD_OUT) == pytest.approx(found.step, rel=0.03)


class DenseAttention(nn.Module):
    """Attention as written for PyG: drops some edges, then ``to_dense_batch``, attention with
    explicit weights, and back by the mask."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(9, width), nn.Linear(width, 1)
        self.attention = nn.MultiheadAttention(width, 2, dropout=dropout, batch_first=True)

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        _, kept = dropout_edge(edge_index, 0.2)
        h = self.inward(x.float()) + edge_attr[kept].float().mean()
        block, mask = to_dense_batch(h, batch)
        out, _ = self.attention(block, block, block, key_padding_mask=~mask)
        return self.outward(global_add_pool((block + out)[mask], batch, batch_size))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_a_mask_that_is_an_index_is_probed_and_its_attention_predicted(esol, dropout):
    """Also at twice the largest probed graph, and with more, smaller graphs."""
    model = DenseAttention(8, dropout)
    optimizer = torch.optim.Adam(model.parameters())
    subject = Probed(Subject(model, squared, optimizer), esol.schema)
    memory = probed(subject, esol)
    assert memory.fit.form == "attention"
    for capacity in (HELD_OUT, Capacity(900, 1_850, 24, 120), Capacity(900, 1_850, 80, 20)):
        found = measured(subject, capacity).step
        assert memory.fit.predict(capacity) == pytest.approx(found, rel=0.03), capacity


def test_evaluation_is_probed_without_a_loss(esol):
    model = models.build("gcn", esol, hidden=32, layers=2)
    task = Probed(Subject(model), esol.schema)
    memory = probed(task, esol)
    assert memory.resident.optimizer == memory.resident.gradients == 0
    found = measured(task, HELD_OUT)
    assert memory.fit.predict(HELD_OUT) == pytest.approx(found.step, rel=0.03)
    assert memory.update_bytes == found.update == 0, "it has no update, whose bytes are a floor"
    assert memory.step_bytes(POINTS[0]) == pytest.approx(measured(task, POINTS[0]).step, rel=0.03)


def test_what_is_resident_is_counted_exactly(esol):
    task = task_of(esol)
    expected = resident_bytes(task.subject)
    model, optimizer = task.subject.model, task.subject.optimizer
    runner = sg.StaticGraphRunner(model, [POINTS[0]], loss=squared, optimizer=optimizer)
    runner.step(sg.StaticBatch.of(esol, range(5), POINTS[0]))

    def total(tensors):
        return sum(t.untyped_storage().nbytes() for t in tensors)

    assert expected.parameters == total(model.parameters())
    assert expected.gradients == total(p.grad for p in model.parameters())
    assert expected.buffers == total(model.buffers())
    state = [v for values in optimizer.state.values() for v in values.values()]
    assert expected.optimizer == total(v for v in state if torch.is_tensor(v))
    assert resident_bytes(task.subject) == expected, "state in place is not counted twice"


def test_counted_as_on_cuda(esol):
    """Storages are rounded up to blocks, so never less, and cuBLAS workspaces are included."""
    readings = {}
    for like in ("cpu", "cuda"):
        with FakeTensorReader(like).open(task_of(esol)) as read:
            readings[like] = read(HELD_OUT)
    assert readings["cuda"].step >= readings["cpu"].step
    assert readings["cuda"].workspaces > readings["cpu"].workspaces == 0
    assert readings["cuda"].update > readings["cpu"].update, "all parameters at once"
