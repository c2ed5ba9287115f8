"""Unedited models that compute the number of graphs or nodes from the batch's indices are static
and give plain PyG's results."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import assert_same_gradients, squared
from support.graphs import double_graphs
from support.index_rules import Bipartite
from support.places import mode_of
from support.runners import sgd_runner
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import global_add_pool, global_mean_pool

import staticgraph as sg
from staticgraph.errors import NotStatic


def graphs(count: int = 12) -> list[Data]:
    data = double_graphs(2 + number % 4 for number in range(count))
    for graph in data:
        graph.num_atoms = graph.num_nodes
    return data


def scatter_of_old(src, index, dim: int = 0):
    """torch_scatter's ``scatter_sum``, without ``dim_size``."""
    index = index.view(-1, *(1,) * (src.dim() - 1)).expand(src.size())
    size = list(src.size())
    size[dim] = int(index.max()) + 1
    return torch.zeros(size, dtype=src.dtype, device=src.device).scatter_add_(dim, index, src)


def last_item(model, data):
    """OGB's virtual node: one row per graph."""
    rows = torch.zeros(data.batch[-1].item() + 1, device=data.x.device).to(data.edge_index.dtype)
    virtual = model.virtual(rows)
    h = model.lin(data.x) + virtual[data.batch]
    return model.head(virtual + global_add_pool(h, data.batch))


def max_of_a_view(model, data):
    size = int(data.batch.squeeze().type(torch.long).cpu().max()) + 1
    h = model.lin(data.x)
    return model.head(h.new_zeros(size, 8).index_add(0, data.batch.type_as(data.batch).long(), h))


def changed_copy(model, data):
    """The largest number of a copy that was changed is its own."""
    folded = data.batch.clone()
    folded %= 3
    return max_of_a_view(model, data) * (int(folded.max()) + 1)


def changed_size(model, data):
    size = data.batch.max()
    size += 1
    h = model.lin(data.x)
    return model.head(h.new_zeros(int(size), 8).index_add(0, data.batch, h))


def max_as_a_tensor(model, data):
    """chemprop: the size stays a tensor."""
    size = data.batch.max().int() + 1
    h = model.lin(data.x)
    index = data.batch.unsqueeze(1).repeat(1, h.shape[1])
    zeros = torch.zeros(size, h.shape[1], dtype=h.dtype, device=h.device)
    return model.head(zeros.scatter_reduce_(0, index, h, reduce="sum", include_self=False))


def repeated_by_counts(model, data):
    """HIMP, DiffCSP: one row per graph, as often as the graph has nodes."""
    h = model.lin(data.x)
    pooled = global_add_pool(h, data.batch).sin()
    h = h * pooled.repeat_interleave(data.num_atoms, dim=0)
    owner = torch.repeat_interleave(torch.arange(len(pooled)), data.num_atoms.view(-1))
    return model.head(global_add_pool(h.view(data.num_atoms.sum().item(), 8), owner))


def nodes_of_edges(model, data):
    row, col = data.edge_index
    nodes = (data.edge_index.max() + 1).item()
    sent = data.x.new_zeros(nodes, 4).index_add(0, col, data.x[row])
    return model.head(global_add_pool(model.lin(data.x + sent), data.batch))


def old_scatter(model, data):
    row, col = data.edge_index[0], data.edge_index[1, :]
    h = model.lin(data.x + scatter_of_old(data.x[row], col))
    return model.head(scatter_of_old(h, data.batch))


def first_nodes(model, data):
    """UPFD: the news item is the first node of each graph."""
    root = (data.batch[1:] - data.batch[:-1]).nonzero(as_tuple=False).view(-1)
    root = torch.cat([root.new_zeros(1), root + 1], dim=0)
    h = model.lin(data.x)
    return model.head(h[root] * global_mean_pool(h, data.batch))


MODELS = [
    last_item,
    max_of_a_view,
    max_as_a_tensor,
    repeated_by_counts,
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


@pytest.mark.sampled(3, always=["first_nodes-eager"])
@pytest.mark.parametrize(
    ("way", "mode"),
    [
        *((way, mode) for way in MODELS for mode in ("eager", "traced")),
        (max_of_a_view, "fused"),
        (changed_copy, "eager"),
        (changed_size, "eager"),
    ],
)
def test_numbers_are_those_of_plain_pyg(way, mode, monkeypatch):
    mode = mode_of(mode, monkeypatch)
    data = graphs()
    for graph in data:  # plain PyG itself needs an edge at the last node
        graph.edge_index[1, -1] = graph.num_nodes - 1
    assert_steps_like_plain_pyg(Net(way), data, [3, 1, 8, 5], (45, 32, 8), mode)


def assert_steps_like_plain_pyg(model, data, ids, capacity, mode):
    """Loss and gradients of a step over some of the graphs."""
    plain = copy.deepcopy(model)
    runner = sgd_runner(model, [capacity], mode)
    whole = Batch.from_data_list([data[i] for i in ids], follow_batch=["x_s", "x_t"])
    expected = squared(plain(whole), whole).mean()
    expected.backward()
    found = runner.step(sg.StaticBatch.of(sg.GraphStore.from_pyg(data), ids, capacity))
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    assert_same_gradients(model, plain, rtol=0, atol=1e-10)


def test_what_is_no_index_of_the_batch_is_still_refused():
    def chosen(model, data):
        some = data.batch[data.x[:, 0].argsort()]
        return model.head(model.lin(data.x)[: int(some.max()) + 1])

    store = sg.GraphStore.from_pyg(graphs())
    report = sg.check(Net(chosen), [(45, 131, 8)], store)
    assert not report.ok
    assert any("test_own_sizes.py" in obstacle.where for obstacle in report.obstacles)


def test_a_number_that_can_only_be_that_of_graphs_is_refused_with_its_line():
    """Dynamo knows from the loss what the number has to be."""

    def counted(model, data):
        h = model.lin(data.x)
        size = len(data.batch.unique())
        return model.head(h.new_zeros(size, 8).index_add(0, data.batch, h))

    store = sg.GraphStore.from_pyg(graphs())
    runner = sgd_runner(Net(counted), [(45, 131, 8)], "fused")
    with pytest.raises(NotStatic, match=r"unique at .*test_own_sizes.py"):
        runner.warmup(store)


def test_a_model_that_does_not_ask_is_left_as_it_was():
    def asks_nothing(model, data):
        assert type(data.batch) is torch.Tensor
        return model.head(global_add_pool(model.lin(data.x), data.batch))

    store = sg.GraphStore.from_pyg(graphs())
    runner = sg.StaticGraphRunner(Net(asks_nothing), [(45, 131, 8)], mode="eager")
    assert runner.predict(store).shape == (12, 1)


def to_targets(x, edge_index, ways):
    """The sum over the sources of each target; the number of targets is computed from the index."""
    source, target = ways(edge_index)
    size = int(target.max()) + 1
    return x.new_zeros(size, x.size(1)).index_add(0, target, x[source])


UNPACKED = {
    "by row": lambda index: (index[0], index[1]),
    "unbound": lambda index: index,
    "from the end": lambda index: (index[-2], index[-1]),
}


def sides(count: int = 9) -> list[Data]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for number in range(count):
        s, t = 1 + number % 3, 2 + number % 4
        ends = torch.stack(
            [
                torch.randint(s, (5,), generator=generator),
                torch.randint(t, (5,), generator=generator),
            ]
        )
        ends[1, -1] = t - 1  # plain PyG itself needs an edge at the last target
        made.append(
            Bipartite(
                x_s=torch.randn(s, 4, generator=generator).double(),
                x_t=torch.randn(t, 4, generator=generator).double(),
                edge_index=ends,
                y=torch.randn(1, 1, generator=generator).double(),
            )
        )
    return made


def types(count: int = 9) -> list[HeteroData]:
    made = []
    for side in sides(count):
        data = HeteroData(y=side.y)
        data["s"].x, data["t"].x = side.x_s, side.x_t
        data["s", "to", "t"].edge_index = side.edge_index
        made.append(data)
    return made


class OfTargets(Net):
    def __init__(self, way, typed: bool):
        super().__init__(way)
        self.typed = typed

    def forward(self, data):
        if self.typed:
            x_s, x_t = data["s"].x, data["t"].x
            edges, of_target = data["s", "to", "t"].edge_index, data["t"].batch
        else:
            x_s, x_t, edges, of_target = data.x_s, data.x_t, data.edge_index, data.x_t_batch
        h = self.lin(x_t + to_targets(x_s, edges, self.way)).relu()
        graphs = int(of_target.max()) + 1
        return self.head(h.new_zeros(graphs, 8).index_add(0, of_target, h))


# Eager and traced among every third case; Inductor compiles the same graph with EVERY_CASE=1.
@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("ways", UNPACKED)
@pytest.mark.parametrize("typed", [False, True], ids=["bipartite", "typed"])
def test_rows_of_types_and_sides_are_told_apart(typed, ways, mode, monkeypatch):
    """More targets than sources, and different numbers of padding rows."""
    mode = mode_of(mode, monkeypatch)
    data = types() if typed else sides()
    capacity = sg.plan_buckets(sg.GraphStore.from_pyg(data), batch_size=5).capacities[-1]
    model = OfTargets(UNPACKED[ways], typed)
    assert_steps_like_plain_pyg(model, data, [3, 1, 8], capacity, mode)
