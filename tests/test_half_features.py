"""Float16 features through everything that handles them: store, batch, checks, steps, probe."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import adam, assert_same_gradients
from support.graphs import drawn_graphs
from support.places import mode_of
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, global_mean_pool

import staticgraph as sg
from staticgraph.checking.example_batch import revalued


def graphs() -> list[Data]:
    fields = {"x": ("node", 4), "edge_attr": ("edge", 3), "y": ("graph", 1)}
    return drawn_graphs((2 + number % 5 for number in range(12)), dtype=torch.float16, **fields)


class Net(nn.Module):
    """Entirely in float32 or entirely in float16."""

    def __init__(self, half: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.bonds = nn.Linear(4, 8), nn.Linear(3, 8)
        self.conv = GINEConv(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()))
        self.head = nn.Linear(8, 1)
        self.to(torch.float16 if half else torch.float32)

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        dtype = self.head.weight.dtype
        h = self.conv(self.into(x.to(dtype)), edge_index, self.bonds(edge_attr.to(dtype)))
        return self.head(global_mean_pool(h, batch, batch_size))


def squared(out, batch):
    return (out - batch.y.to(out.dtype)).square()


IDS, CAPACITY = [3, 1, 8, 5], (40, 70, 8)


AS_FLOAT32, THROUGHOUT = "read as float32", "float16 throughout"
MODES = (
    (AS_FLOAT32, "eager"),
    *((THROUGHOUT, "fused"), (THROUGHOUT, "eager"), (THROUGHOUT, "traced")),
    *((AS_FLOAT32, "fused"), (AS_FLOAT32, "traced")),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("half", "mode"), MODES)
def test_a_step_is_plain_pygs(mode, half, monkeypatch):
    half = half == THROUGHOUT
    data = graphs()
    store = sg.GraphStore.from_pyg(data)
    model = Net(half)
    plain = copy.deepcopy(model).train()
    runner = sgd_runner(model, [CAPACITY], mode_of(mode, monkeypatch), loss=squared)
    if mode != "default":  # saves Inductor compiling an evaluation that never runs
        runner.warmup(store)
    whole = Batch.from_data_list([data[i] for i in IDS])
    out = plain(whole.x, whole.edge_index, whole.edge_attr, whole.batch, len(IDS))
    expected = squared(out, whole).mean()
    expected.backward()
    found = runner.step(sg.StaticBatch.of(store, IDS, CAPACITY))
    near = {"rtol": 2e-2, "atol": 1e-2} if half else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, expected.detach(), **near)
    assert_same_gradients(model, plain, **near)


def test_checks_and_probe_take_them():
    store = sg.GraphStore.from_pyg(graphs())
    batch = sg.StaticBatch.of(store, IDS, CAPACITY)
    other = revalued(batch)
    assert other.x.dtype == torch.float16
    assert torch.equal(other.x[batch.node_mask], batch.x[batch.node_mask])
    assert torch.isfinite(other.x).all()
    assert not torch.equal(other.x, batch.x), "padding was not touched"
    report = sg.check(Net(), [CAPACITY], store)
    assert report.recordable, str(report)
    model = Net()
    memory = sg.probe(model, store, loss=squared, optimizer=adam(model))
    assert memory.fit.worst < 0.03
