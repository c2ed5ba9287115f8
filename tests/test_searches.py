"""Models that search for neighbours in their forward equal plain PyG over the same pairs."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import torch_geometric
import torch_geometric.nn as pyg
from support.alike import squared
from support.runners import made_runner, sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn.models import DimeNetPlusPlus, SchNet, ViSNet, dimenet

import staticgraph as sg
from staticgraph.atoms.structures import counts_within
from staticgraph.nn.context.search_room import SearchRoom
from staticgraph.nn.pool.neighbours import padding_ends


def pairs(x, ptr, ignore_same):
    """``[n, n]`` distances between points of one graph, infinite between others."""
    graph = torch.repeat_interleave(ptr.diff())
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    apart = apart.masked_fill(graph[:, None] != graph, torch.inf)
    return apart.fill_diagonal_(torch.inf) if ignore_same else apart


def radius(x, y, ptr_x, ptr_y, r, most, workers, ignore_same):
    """pyg-lib's ``radius``, of one set of points with itself: those that come first."""
    near = pairs(x.detach(), ptr_x, ignore_same) < r
    return (near & (near.cumsum(1) <= most)).nonzero().t()


def knn(x, y, ptr_x, ptr_y, k, cosine, workers):
    x = nn.functional.normalize(x.detach()) if cosine else x.detach()
    apart = pairs(x, ptr_x, False)
    distance, index = apart.topk(min(k, len(x)), largest=False)
    centre = torch.arange(len(x))[:, None].expand_as(index)
    return torch.stack([centre[distance < torch.inf], index[distance < torch.inf]])


class Sparse:
    """What DimeNet asks of torch-sparse's ``SparseTensor``: rows of a matrix, by index."""

    def __init__(self, row, col, value, sparse_sizes=None):
        order = (row * (int(col.max()) + 1 if len(col) else 1) + col).argsort(stable=True)
        self.storage, self._entries = self, [each[order] for each in (row, col, value)]
        self.row, self.col, self.value = (lambda each=each: each for each in self._entries)

    def __getitem__(self, index):
        row, col, value = self._entries
        new, entry = (index[:, None] == row).nonzero().t()
        taken = Sparse(new, col[entry], value[entry])
        taken.rows = len(index)
        return taken

    def set_value(self, value):
        return self

    def sum(self, dim):
        return self._entries[0].bincount(minlength=self.rows)


@pytest.fixture(autouse=True)
def searches(monkeypatch):
    """pyg-lib's and torch-sparse's, for plain PyG: they are on no index for current torch."""
    monkeypatch.setattr(dimenet, "SparseTensor", Sparse)
    monkeypatch.setattr(torch_geometric.typing, "WITH_RADIUS", True)
    monkeypatch.setattr(torch_geometric.typing, "WITH_KNN", True, raising=False)
    ops = SimpleNamespace(radius=radius, knn=knn)
    monkeypatch.setattr(torch.ops, "pyg", ops, raising=False)


def clusters():
    random = torch.Generator().manual_seed(0)
    return [
        Data(
            pos=1.5 * torch.rand(n, 3, generator=random, dtype=torch.float64) * n ** (1 / 3),
            z=torch.randint(1, 9, (n,), generator=random),
            y=torch.randn(1, 1, generator=random, dtype=torch.float64),
        )
        for n in (1, 2, 3, 5, 8, 13, 21)
    ]


class Searching(nn.Module):
    """Two searches in one forward, the second among features."""

    def __init__(self, loop, flow):
        super().__init__()
        self.loop, self.flow = loop, flow
        self.first = pyg.GraphConv(3, 4, flow=flow)
        self.second = pyg.EdgeConv(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)), flow=flow)

    def forward(self, z, pos, batch, batch_size):
        options = {"loop": self.loop, "flow": self.flow}
        near = pyg.radius_graph(pos, 1.2, batch, max_num_neighbors=4, **options)
        h = self.first(pos, near).tanh()
        nearest = pyg.knn_graph(h, 3, batch, **options)
        return pyg.global_add_pool(self.second(h, nearest), batch, batch_size)


def moved(model):
    """A model none of whose parameters is zero, as DimeNet's last layers begin."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


MODELS = {
    "radius and knn": lambda: Searching(False, "source_to_target"),
    "loops, backwards": lambda: Searching(True, "target_to_source"),
    "SchNet": lambda: SchNet(16, 8, 2, 10, cutoff=2.0, max_num_neighbors=6),
    "DimeNet++": lambda: moved(
        DimeNetPlusPlus(8, 1, 1, 4, 4, 4, 3, 4, cutoff=2.0, max_num_neighbors=6)
    ),
}


def call(model, data):
    sized = {"batch_size": data.num_graphs} if isinstance(model, Searching) else {}
    return model(data.z, data.pos, data.batch, **sized)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "fused", "fused, fitted"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_plain_pygs(name, mode):
    graphs = clusters()
    torch.manual_seed(0)
    model = MODELS[name]().double()
    plain, whole = copy.deepcopy(model), Batch.from_data_list(graphs)
    squared(call(plain, whole), whole).mean().backward()
    expected = [p.grad for p in plain.parameters() if p.grad is not None]
    predicted = call(plain.eval(), whole).detach()
    store = sg.GraphStore.from_pyg(graphs)
    plan = [sg.Capacity(nodes=60, edges=8, graphs=len(graphs) + 2, max_graph_nodes=30)]
    if mode == "fused, fitted":
        model.search_room = SearchRoom(2.0, 3.8, 4.2)
    runner = sgd_runner(model, plan, mode.partition(",")[0], forward=call)
    runner.step(next(iter(runner.loader(store, exact=False))))
    actual = [p.grad for p in model.parameters() if p.grad is not None]
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(runner.predict(graphs), predicted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("real", "source", "target"),
    [(5, [6, 6, 7, 7, 8, 8], [5, 5, 6, 6, 7, 7]), (8, [8] * 6, [8] * 6), (9, [8] * 6, [8] * 6)],
)
def test_padding_edges_are_spread_over_the_padding_nodes(real, source, target):
    ends = padding_ends(torch.arange(9) < real, rows=6)
    assert [end.tolist() for end in ends] == [source, target]


@pytest.mark.parametrize(("name", "messages"), [("radius and knn", 2), ("DimeNet++", 1)])
def test_messages_over_found_edges_are_programs(name, messages):
    """Their indices are computed, and none of them can be negative."""
    store = sg.GraphStore.from_pyg(clusters())
    plan = [sg.Capacity(nodes=60, edges=8, graphs=9, max_graph_nodes=30)]
    model = MODELS[name]().double()
    report = sg.check(model, plan, store, forward=call, loss=squared, rewrites=True)
    assert str(report.rewrites).count("[source]") == messages, report.rewrites


def test_as_many_triplets_as_edges():
    """Water: six edges, and six triplets, whose padding is not of a real edge."""
    model = MODELS["DimeNet++"]().double().eval()
    pos = torch.tensor([[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]], dtype=torch.float64)
    water = Data(pos=pos, z=torch.tensor([8, 1, 1]), y=torch.zeros(1, 1, dtype=torch.float64))
    expected = call(copy.deepcopy(model), Batch.from_data_list([water])).detach()
    runner = made_runner(model, [(9, 8, 3)], "eager", forward=call)
    torch.testing.assert_close(runner.predict([water]), expected, rtol=1e-9, atol=0)


def test_more_edges_than_a_search_has_room_for_are_refused():
    graphs, model = clusters(), Searching(False, "source_to_target").double()
    model.search_room = SearchRoom(1.2, 0.5, 1.0)
    store = sg.GraphStore.from_pyg(graphs)
    runner = sgd_runner(model, sg.plan_buckets(store, len(graphs)), "fused", forward=call)
    with pytest.raises(sg.NonFiniteLoss, match=r"search_room\.grow\(\)"):
        runner.step(next(iter(runner.loader(store))))


def test_a_search_is_fitted_to_a_data_set():
    pytest.importorskip("vesin")
    graphs = 40 * clusters()
    plan = sg.plan_buckets(sg.GraphStore.from_pyg(graphs), batch_size=64)
    model = nn.Module()
    room = sg.atoms.fit_searches(model, graphs, plan, 1.2)
    counts = counts_within(clusters(), 1.2)
    assert model.search_room is room
    assert sum(e for _, e, _ in counts) / 53 < room.per_node < max(e / n for n, e, _ in counts)
    assert room.per_edge < max(triplets / max(1, e) for _, e, triplets in counts)


def test_a_model_that_indexes_found_edges_with_a_mask_runs_in_eager():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_channels": 16, "num_rbf": 8, "cutoff": 2.0}
    model = ViSNet(**sizes).eval()
    graphs = [
        data.clone().apply(lambda v: v.float() if v.is_floating_point() else v)
        for data in clusters()
    ]
    whole = Batch.from_data_list(graphs)
    expected = call(model, whole)[0].detach()
    plan = sg.plan_buckets(sg.GraphStore.from_pyg(graphs), batch_size=4)
    actual = made_runner(
        model, plan, "eager", forward=lambda model, data: call(model, data)[0]
    ).predict(graphs)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_search_without_the_batchs_rows_is_refused():
    model = Searching(False, "source_to_target").double()
    plan = sg.plan_buckets(sg.GraphStore.from_pyg(clusters()), batch_size=2)

    def without_batch(model, data):
        return pyg.radius_graph(data.pos, 1.0)

    runner = made_runner(model, plan, "eager", forward=without_batch)
    with pytest.raises(sg.NotStatic, match="pass batch=batch"):
        runner.predict(clusters())


def test_in_eager_places_without_a_neighbour_are_left_out():
    counts = []

    class Counting(nn.Module):
        """Notes how many edges a search gives its layers."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, pos, batch, batch_size):
            near = pyg.radius_graph(pos, 1.2, batch, max_num_neighbors=16)
            counts.append(near.size(1))
            degree = pos.new_zeros(len(pos)).index_add(0, near[1], self.weight.expand(len(near[1])))
            return pyg.global_add_pool(degree[:, None], batch, batch_size)

    graphs = clusters()
    real = [int((pairs(g.pos, torch.tensor([0, len(g.pos)]), True) < 1.2).sum()) for g in graphs]
    store = sg.GraphStore.from_pyg(graphs)
    runner = sg.StaticGraphRunner(Counting(), sg.plan_buckets(store, len(graphs)), mode="eager")
    predicted = runner.predict(store)
    assert predicted.flatten().tolist() == real
    assert 0 <= counts[-1] - sum(real) <= 3, "more only where the number means something else"
