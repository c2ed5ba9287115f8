"""Edges that a user puts in place of a batch's own: plain PyG's numbers, or a refusal. Fused loops
read row pointers, which belong to the original edges."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import real_ids, sgd, squared, update
from support.plain_epochs import PLAN, STORE
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_add_pool

import staticgraph as sg


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(4, 6), nn.Linear(6, 2)

    def forward(self, data):
        h = self.conv(data.x, data.edge_index).relu()
        return self.head(global_add_pool(h, data.batch, data.num_graphs))


class Inside(Net):
    """Reverses the edges in its own forward."""

    def forward(self, data):
        data.edge_index = data.edge_index.flip(0)
        return super().forward(data)


def reversed_edges(batch):
    batch.edge_index = batch.edge_index.flip(0)


def written_edges(batch):
    batch.edge_index.copy_(batch.edge_index.flip(0))


def losses(mode: str, kind: type[Net], change) -> tuple[list, list]:
    """The losses of three steps in this library and in plain PyG."""
    torch.manual_seed(0)
    model = kind().double()
    twin = copy.deepcopy(model)
    optimizers = [sgd(m, 0.01) for m in (model, twin)]
    runner = sg.StaticGraphRunner(model, PLAN, mode, loss=squared, optimizer=optimizers[0])
    found, expected = [], []
    for batch in runner.loader(STORE):
        data = Batch.from_data_list(STORE[real_ids(batch)])
        change(batch)
        found.append(float(runner.step(batch)))
        change(data)
        loss = squared(twin(data), data).mean()
        update(optimizers[1], loss)
        expected.append(float(loss))
    return found, expected


@pytest.mark.parametrize("change", [reversed_edges, written_edges])
def test_an_eager_step_takes_other_edges(change):
    found, expected = losses("eager", Net, change)
    assert found == pytest.approx(expected, rel=1e-10)


def test_edges_exchanged_inside_of_the_forward_are_plain_pygs():
    found, expected = losses("fused", Inside, lambda batch: None)
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("change", [reversed_edges, written_edges])
def test_fused_loops_refuse_edges_out_of_order(change):
    with pytest.raises(ValueError, match="no longer in order of destination"):
        losses("fused", Net, change)
