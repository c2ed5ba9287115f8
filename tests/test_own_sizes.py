"""Models that read the number of graphs or nodes off the batch's own indices are static, unedited,
and give plain PyG's numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool, global_mean_pool

import staticgraph as sg


def graphs(count: int = 12) -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        n = 2 + number % 4
        made.append(
            Data(
                x=torch.randn(n, 4, generator=generator).double(),
                edge_index=torch.randint(n, (2, 2 * n + 1), generator=generator),
                y=torch.randn(1, 1, generator=generator).double(),
            )
        )
    return made


def scatter_of_old(src, index, dim: int = 0):
    """torch_scatter's ``scatter_sum``, without ``dim_size``."""
    index = index.view(-1, *(1,) * (src.dim() - 1)).expand(src.size())
    size = list(src.size())
    size[dim] = int(index.max()) + 1
    return torch.zeros(size, dtype=src.dtype, device=src.device).scatter_add_(dim, index, src)


def last_item(model, data):
    """OGB's virtual node: a row of its own for each graph."""
    rows = torch.zeros(data.batch[-1].item() + 1, device=data.x.device).to(data.edge_index.dtype)
    virtual = model.virtual(rows)
    h = model.lin(data.x) + virtual[data.batch]
    return model.head(virtual + global_add_pool(h, data.batch))


def int_of_max(model, data):
    size = int(data.batch.max()) + 1
    h = model.lin(data.x)
    return model.head(h.new_zeros(size, 8).index_add(0, data.batch, h))


def int_of_last(model, data):
    """schnetpack's ``idx_m``."""
    idx_m = data.batch
    maxm = int(idx_m[-1]) + 1
    h = model.lin(data.x)
    return model.head(h.new_zeros(maxm, 8).index_add(0, idx_m, h))


def sum_read_last(model, data):
    size = (data.batch.max() + 1).item()
    return model.head(global_add_pool(model.lin(data.x), data.batch, size))


def nodes_of_edges(model, data):
    row, col = data.edge_index
    nodes = int(data.edge_index.max()) + 1
    sent = data.x.new_zeros(nodes, 4).index_add(0, col, data.x[row])
    return model.head(global_add_pool(model.lin(data.x + sent), data.batch))


def old_scatter(model, data):
    row, col = data.edge_index[0], data.edge_index[1]
    h = model.lin(data.x + scatter_of_old(data.x[row], col))
    return model.head(scatter_of_old(h, data.batch))


def first_nodes(model, data):
    """upfd: the news item is the first node of each graph."""
    root = (data.batch[1:] - data.batch[:-1]).nonzero(as_tuple=False).view(-1)
    root = torch.cat([root.new_zeros(1), root + 1], dim=0)
    h = model.lin(data.x)
    return model.head(h[root] * global_mean_pool(h, data.batch))


MODELS = [
    last_item,
    int_of_max,
    int_of_last,
    sum_read_last,
    nodes_of_edges,
    old_scatter,
    first_nodes,
]


class Net(torch.nn.Module):
    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.virtual = torch.nn.Embedding(1, 8).double()
        self.lin = torch.nn.Linear(4, 8).double()
        self.head = torch.nn.Linear(8, 1).double()

    def forward(self, data):
        return self.way(self, data)


@pytest.mark.parametrize("mode", ["eager", "default"])
@pytest.mark.parametrize("way", MODELS)
def test_numbers_are_those_of_plain_pyg(way, mode):
    data = graphs()
    for graph in data:  # plain PyG itself needs an edge at the last node
        graph.edge_index[1, -1] = graph.num_nodes - 1
    store = sg.GraphStore.from_pyg(data, progress=False)
    model = Net(way)
    plain = copy.deepcopy(model)
    runner = sg.StaticGraphRunner(
        model,
        [(45, 131, 8)],
        mode=mode,
        loss=lambda out, batch: (out - batch.y).square(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
    )
    ids = [3, 1, 8, 5]
    whole = Batch.from_data_list([data[i] for i in ids])
    expected = (plain(whole) - whole.y).square().mean()
    expected.backward()
    found = runner.step(sg.StaticBatch.of(store, ids, (45, 131, 8)))
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("way", MODELS)
def test_the_preflight_finds_nothing_in_the_way(way):
    store = sg.GraphStore.from_pyg(graphs(), progress=False)
    report = sg.preflight(Net(way), [(45, 131, 8)], store)
    kinds = {obstacle.kind for obstacle in report.obstacles} - {"host-to-device copy"}
    assert not kinds, str(report)


def test_what_is_no_index_of_the_batch_is_still_refused():
    def chosen(model, data):
        some = data.batch[data.x[:, 0].argsort()]
        return model.head(model.lin(data.x)[: int(some.max()) + 1])

    store = sg.GraphStore.from_pyg(graphs(), progress=False)
    report = sg.preflight(Net(chosen), [(45, 131, 8)], store)
    assert not report.ok
    assert any("test_own_sizes.py" in obstacle.where for obstacle in report.obstacles)


def test_a_model_that_does_not_ask_is_left_as_it_was():
    def asks_nothing(model, data):
        assert type(data.batch) is torch.Tensor
        return model.head(global_add_pool(model.lin(data.x), data.batch))

    store = sg.GraphStore.from_pyg(graphs(), progress=False)
    runner = sg.StaticGraphRunner(Net(asks_nothing), [(45, 131, 8)], mode="eager")
    with torch.no_grad():
        assert runner.predict(store).shape == (12, 1)


def test_layers_of_pyg_take_a_marked_batch():
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GINConv(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)))
            self.double()

        def forward(self, x, edge_index, batch):
            size = int(batch.max()) + 1
            return global_add_pool(self.conv(x, edge_index), batch, size)

    store = sg.GraphStore.from_pyg(graphs(), progress=False)
    report = sg.preflight(Both(), [(45, 131, 8)], store)
    assert report.ok, str(report)
    assert report.parity < 1e-10
