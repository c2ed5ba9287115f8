"""BatchNorm over dense blocks laid out flat, ``[G * M, C]``, as in DiffPool: its statistics are
those of plain PyG's block, which is as wide as the largest graph of the batch."""

from __future__ import annotations

import copy

import pytest
import torch
from support.graphs import double_graphs
from support.places import mode_of
from torch_geometric.data import Batch, Data
from torch_geometric.nn import DenseGCNConv, dense_diff_pool
from torch_geometric.utils import to_dense_adj, to_dense_batch

import staticgraph as sg

CAPACITY = (45, 131, 8)


def graphs(count: int = 12) -> list[Data]:
    return double_graphs(3 + number % 5 for number in range(count))


class DiffPool(torch.nn.Module):
    def __init__(self, most: int | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.most = most
        self.conv = DenseGCNConv(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.assign = torch.nn.Linear(8, 3)
        self.pooled = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 1)
        self.double()

    def forward(self, data):
        x, mask = to_dense_batch(data.x, data.batch, max_num_nodes=self.most)
        adj = to_dense_adj(data.edge_index, data.batch, max_num_nodes=self.most).to(x.dtype)
        h = self.conv(x, adj, mask)
        size, nodes, width = h.shape
        h = self.norm(h.view(-1, width)).view(size, nodes, width).relu()
        h, adj, _, _ = dense_diff_pool(h, adj, self.assign(h), mask)
        h = self.pooled(h.reshape(-1, width)).view(size, 3, width)
        return self.head(h.mean(1))


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("most", [None, 9], ids=["as wide as the batch", "of a given width"])
def test_diff_pool_is_that_of_plain_pyg(most, mode, monkeypatch):
    data = graphs()
    store = sg.GraphStore.from_pyg(data, progress=False)
    model = DiffPool(most)
    plain = copy.deepcopy(model)
    runner = sg.StaticGraphRunner(
        model,
        [sg.Capacity(*CAPACITY, max_graph_nodes=7)],
        mode=mode_of(mode, monkeypatch),
        loss=lambda out, batch: (out - batch.y).square(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
    )
    ids = [0, 1, 5, 2, 6]  # all smaller than the largest graph
    batch = sg.StaticBatch.of(store, ids, sg.Capacity(*CAPACITY, max_graph_nodes=7))
    whole = Batch.from_data_list([data[i] for i in ids])
    expected = (plain(whole) - whole.y).square().mean()
    expected.backward()
    assert runner.step(batch).item() == pytest.approx(expected.item(), rel=1e-10)
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-10, msg=name)
    own = [(name, value) for name, value in model.named_buffers() if "_staticgraph" not in name]
    for (name, mine), theirs in zip(own, plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10, msg=name)


def test_a_block_with_as_many_places_as_the_bucket_has_nodes_is_refused():
    store = sg.GraphStore.from_pyg(graphs(), progress=False)
    capacity = sg.Capacity(56, 131, 8, max_graph_nodes=7)  # 8 graphs of 7 places
    batch = sg.StaticBatch.of(store, range(5), capacity)
    batch = sg.StaticBatch(batch.layout, batch.tensors())
    report = sg.preflight(DiffPool(), [capacity], batch.replace())
    assert not report.ok
    assert "a dense block laid out flat has as many places" in str(report)
