"""Models that read edges by their position: served where edges keep their order, else refused.

The oracle is plain PyG on the graphs as they were given.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from support.alike import real_ids, same, sgd, squared, update
from support.ranks import on_ranks
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, global_add_pool
from torch_geometric.utils import scatter

import staticgraph as sg
from staticgraph.checking import equal_draws
from staticgraph.checking.explain import explain
from staticgraph.errors import EdgesMoved


def molecules(count: int = 24) -> list[Data]:
    """Graphs whose edges come in pairs: the reverse of edge 2k is 2k + 1."""
    random = torch.Generator().manual_seed(0)

    def drawn(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=random)

    graphs = []
    for _ in range(count):
        n, b = int(drawn(6, 1)) + 2, int(drawn(8, 1))
        ends = drawn(n, 2, b)
        graphs.append(
            Data(
                x=torch.randn(n, 4, generator=random, dtype=torch.float64),
                edge_index=torch.stack([ends, ends.flip(0)], 2).reshape(2, -1),
                edge_attr=torch.randn(2 * b, 2, generator=random, dtype=torch.float64),
                y=torch.randn(1, generator=random, dtype=torch.float64),
            )
        )
    return graphs


GRAPHS = molecules()
EDGES = [graph.edge_attr for graph in GRAPHS]


class DMPNN(nn.Module):
    """Messages along edges, without the reverse one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.next, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(12, 1)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x, edge_index, edge_attr, batch):
        src, dst = edge_index
        first = h = self.first(torch.cat([x[src], edge_attr], 1)).relu()
        for _ in range(2):
            into = scatter(h, dst, 0, x.size(0))
            h = (first + self.next(into[src] - self.reverse(h))).relu()
        h = torch.cat([self.dropout(x), scatter(h, dst, 0, x.size(0))], 1)
        return self.last(global_add_pool(h, batch)).squeeze(1)

    def reverse(self, h):
        return h.view(h.size(0) // 2, 2, -1).flip(1).reshape(h.size(0), -1)  # here


class Interleaved(DMPNN):
    def reverse(self, h):
        return torch.stack([h[1::2], h[::2]], 1).flatten(0, 1)


class ByNumber(DMPNN):
    def reverse(self, h):
        return h[torch.arange(len(h), device=h.device) ^ 1]


def made(kind: type[nn.Module], **options):
    torch.manual_seed(0)
    return kind(**options).double()


def runner_of(model, plan, mode="eager"):
    return sgd_runner(model, plan, mode, rate=1e-2)


def stored(keep_order: bool = True) -> sg.GraphStore:
    return sg.GraphStore.from_pyg(GRAPHS, keep_order=keep_order)


def pyg_out(model, graphs) -> torch.Tensor:
    data = Batch.from_data_list(graphs)
    return model(data.x, data.edge_index, data.edge_attr, data.batch)


def pyg_loss(model, graphs) -> torch.Tensor:
    return squared(pyg_out(model, graphs), Batch.from_data_list(graphs)).mean()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["eager", "fused"])
@pytest.mark.parametrize("kind", [DMPNN, Interleaved, ByNumber])
def test_a_store_that_keeps_the_order_serves_it(kind, mode):
    """Training, prediction of graphs of the store and of new ones, and rows of edges."""
    store, model = stored(), made(kind)
    plan = sg.plan_buckets(store, batch_size=5)
    assert sg.check(made(kind), plan), "graphs made up from the schema have pairs"
    assert sg.BucketPlan.from_dict(plan.to_dict()).schema.keep_order
    plain = copy.deepcopy(model)
    optimizer = sgd(plain, 1e-2)
    runner = runner_of(model, plan, mode)
    for batch in runner.loader(store, shuffle=True, seed=1):
        expected = pyg_loss(plain, [GRAPHS[i] for i in real_ids(batch)])
        update(optimizer, expected)
        assert torch.allclose(runner.step(batch), expected.detach(), rtol=1e-9)
    expected = pyg_out(plain, GRAPHS).detach()
    for graphs in (store, GRAPHS):
        assert torch.allclose(runner.predict(graphs), expected, rtol=1e-9)
    edges = sg.StaticGraphRunner(nn.Identity(), plan, forward=lambda _, b: b.edge_attr)
    assert same(edges.predict(store), EDGES)


def test_it_is_served_in_a_padders_batches_and_refused_once_sorted_edges_follow():
    model, padder = made(DMPNN), sg.Padder(sg.plan_stream(GRAPHS, batch_size=6))
    runner = runner_of(model, padder)
    for _ in range(2):
        expected = pyg_loss(model, GRAPHS[:6])
        assert torch.allclose(runner.step(padder(GRAPHS[:6])), expected, rtol=1e-9)
    expected = pyg_out(model, GRAPHS).detach()
    assert torch.allclose(runner.predict(GRAPHS), expected, rtol=1e-9)
    with pytest.raises(sg.errors.EdgesMoved):
        runner.predict(stored(keep_order=False))


class Crossing(nn.Module):
    """A ReLU of numbers within rounding of zero: one that follows the order of edges, added and
    taken away again, rounds them up or down."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x, edge_index, edge_attr, batch):
        x = x[:, :1].float()
        places = torch.arange(1.0, 1 + len(edge_attr)) @ edge_attr.detach().float()
        large = 100 * (1 + 256 * places[0].frac().abs())
        near_zero = ((self.scale * x + large) - large - x + 1e-6).relu()
        return global_add_pool(x + near_zero, batch).squeeze(1)


@pytest.mark.filterwarnings("error")
def test_a_slope_that_rounding_alone_makes_jump_does_not_follow_the_order():
    store, capacity = stored(keep_order=False), (60, 90, 9)
    batch = sg.StaticBatch.of(store, range(6), capacity)
    runner_of(Crossing(), [capacity]).step(batch)


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_over_sorted_edges_it_is_refused_at_its_line(mode):
    """In the first step and in preflight, whether its dropout draws or not."""
    store = stored(keep_order=False)
    plan = [(60, 90, 9)]
    for p in (0.0, 0.5):
        model = made(DMPNN)
        model.dropout.p = p
        with pytest.raises(sg.errors.EdgesMoved, match=r"# here.*keep_order=True") as raised:
            runner_of(model, plan, mode).step(sg.StaticBatch.of(store, range(6), plan[0]))
        assert "test_edge_order.py" in raised.value.where
    report = sg.check(made(Interleaved), plan, store)
    assert not report
    found = [each for each in report.obstacles if each.kind == "edges by their position"]
    assert len(found) == 1
    assert "keep_order=True" in found[0].remedy


def test_it_is_refused_where_edges_of_the_last_graph_alone_were_moved():
    """The first graphs, over which the order is checked, then show nothing."""
    store = sg.GraphStore.from_pyg(GRAPHS)
    moved = [bool((graph.edge_index[1].diff() < 0).any()) for graph in GRAPHS]
    ids = [moved.index(False)] * 20 + [moved.index(True)]
    batch = sg.StaticBatch.of(store, ids, (200, 400, 30))
    model = DMPNN().double()
    runner = sgd_runner(model, [(200, 400, 30)], "auto", rate=0.1)
    with pytest.raises(EdgesMoved, match="by their position"):
        runner.step(batch)


def test_what_is_indifferent_to_the_order_is_served_from_either():
    """Also rows of edges in the output, and a model whose data set was sorted anyway."""

    class Indifferent(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GINEConv(nn.Linear(4, 4), edge_dim=2)

        def forward(self, x, edge_index, edge_attr):
            h = self.conv(x, edge_index, edge_attr)
            return h[edge_index[0]] - h[edge_index[1]]

    for keep_order in (True, False):
        store = stored(keep_order)
        assert sg.check(made(Indifferent), sg.plan_buckets(store, 5), store)
    by_destination = [
        Data(x=g.x, edge_index=g.edge_index[:, order], edge_attr=g.edge_attr[order], y=g.y)
        for g in GRAPHS
        for order in [g.edge_index[1].argsort(stable=True)]
    ]
    store = sg.GraphStore.from_pyg(by_destination)
    runner_of(made(ByNumber), [(60, 90, 9)]).step(sg.StaticBatch.of(store, range(6), (60, 90, 9)))


class Rejecting(DMPNN):
    """It does not read edges by their position, and draws until a number fits."""

    def reverse(self, h):
        while torch.rand(()) > 0.5:
            pass
        return h


def test_a_model_that_draws_until_a_number_fits_is_checked_in_finite_time(monkeypatch):
    monkeypatch.setattr(equal_draws, "MOST_DRAWS", 50)
    store, plan = stored(keep_order=False), [(60, 90, 9)]
    model = made(Rejecting)
    assert runner_of(model, plan).step(sg.StaticBatch.of(store, range(6), plan[0])).isfinite()


def test_a_padder_sorts_edges_where_it_is_asked_to():
    """As a store does: kernels over neighbours, rows of edges in PyG's order again, and a model
    that reads edges by their position refused, as with a plan whose store sorted them."""

    class Convolved(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = GINEConv(nn.Linear(4, 4), edge_dim=2), nn.Linear(4, 1)

        def forward(self, x, edge_index, edge_attr, batch):
            return self.head(global_add_pool(self.conv(x, edge_index, edge_attr), batch)).squeeze(1)

    def padder():
        return sg.Padder(sg.plan_stream(GRAPHS, batch_size=6, buckets=1), sort_edges=True)

    model = made(Convolved)
    plain = copy.deepcopy(model)
    optimizer = sgd(plain, 1e-2)
    pad = padder()
    runner = runner_of(model, pad, "fused").warmup()
    for first in (0, 6, 12):
        graphs = GRAPHS[first : first + 6]
        for batch in (pad(graphs), graphs, Batch.from_data_list(graphs)):
            expected = pyg_loss(plain, graphs)
            update(optimizer, expected)
            assert torch.allclose(runner.step(batch), expected.detach(), rtol=1e-9)
    with pytest.raises(
        sg.errors.NotStatic, match=r"in the order of.*one Padder in place of the plan"
    ):
        runner.step(sg.Padder(sg.plan_stream(GRAPHS, batch_size=6, buckets=1))(GRAPHS[:6]))
    functions = list(runner.steps.compiled._functions.values())
    assert len(functions) == 2, "step and evaluation, from the warm-up"
    for function in functions:
        assert "neighbours" in {place.rewrite for place in function.captured.done}
    edges = sg.StaticGraphRunner(nn.Identity(), padder(), forward=lambda _, b: b.edge_attr)
    assert same(edges.predict(GRAPHS), EDGES)
    by_a_stores_plan = sg.Padder(sg.plan_stream(stored(keep_order=False), batch_size=6))
    for pad in (padder(), by_a_stores_plan):
        for batch in (GRAPHS[:6], pad(GRAPHS[:6])):
            with pytest.raises(sg.errors.EdgesMoved, match="without sort_edges=True"):
                runner_of(made(DMPNN), pad).step(batch)
    learning = sg.Padder([(60, 90, 9)], sort_edges=True)
    assert bool((learning(GRAPHS[:6]).edge_index[1].diff() >= 0).all())
    own = sg.Schema.of_batch({"h": torch.ones(2, 1), "batch": torch.zeros(2)}, node=["h"])
    with pytest.raises(ValueError, match="leave sort_edges out"):
        sg.Padder([(60, 90, 9)], schema=own, sort_edges=True)


@pytest.mark.parametrize("way", ["pickled", "copied", "split", "of a store, pickled"])
def test_sorted_edges_are_known_as_such_wherever_a_batch_comes_from(way):
    """Worker processes pickle batches; a batch that fits no bucket has parts."""
    graphs = (
        stored(keep_order=False).__getitems__(list(range(12))) if "store" in way else GRAPHS[:12]
    )
    pad = sg.Padder([(60, 90, 9)], sort_edges="store" not in way, overflow="split")
    whole, (_, part) = (
        sg.Padder([(90, 190, 15)], sort_edges="store" not in way)(graphs),
        pad(graphs),
    )
    batch = {"split": lambda: part, "copied": lambda: copy.deepcopy(whole)}.get(
        way, lambda: pickle.loads(pickle.dumps(whole))
    )()
    with pytest.raises(sg.errors.EdgesMoved):
        runner_of(made(DMPNN), [batch.capacity]).step(batch)


class Waiting(DMPNN):
    """Begins a collective in its forward, in which every rank has to take part."""

    def forward(self, x, edge_index, edge_attr, batch):
        dist.all_reduce(torch.zeros(1))
        return super().forward(x, edge_index, edge_attr, batch)


def _trained_over_sorted_edges(kind: type[nn.Module]) -> str:
    store = stored(keep_order=False)
    runner = runner_of(made(kind), [(60, 90, 9)])  # the model reads edges in pairs
    try:
        for batch in runner.loader(store):
            runner.step(batch)
    except sg.errors.EdgesMoved:
        return "refused"
    return "trained"


@pytest.mark.parametrize(("kind", "expected"), [(DMPNN, "refused"), (Waiting, "trained")])
def test_ranks_refuse_it_each_alone_and_wait_for_none(kind, expected):
    assert on_ranks(2, _trained_over_sorted_edges, kind) == [expected] * 2


@pytest.mark.parametrize("keep_order", [True, False])
def test_a_padder_refuses_a_store_in_the_other_order(keep_order):
    padder = sg.Padder(sg.plan_stream(stored(keep_order), batch_size=6))
    with pytest.raises(sg.BadGraph, match="those of the plan's batches"):
        padder(stored(not keep_order).__getitems__(list(range(6))))


@pytest.mark.parametrize("edges", [90, 91])
@pytest.mark.parametrize("field", ["x", "R"])
def test_padding_edges_come_in_pairs(edges, field):
    """Of self-loops, or, where nodes have vectors, of an edge and its reverse."""
    graphs = [Data(edge_index=g.edge_index, num_nodes=g.num_nodes) for g in GRAPHS]
    for graph in graphs:
        graph[field] = torch.randn(graph.num_nodes, 3 if field == "R" else 4)
    store = sg.GraphStore.from_pyg(graphs, keep_order=True)
    batch = sg.StaticBatch.of(store, range(6), (60, edges, 9))
    padding = batch.edge_index[:, batch.real_edges :]
    pairs = padding.size(1) // 2
    assert torch.equal(padding[:, : 2 * pairs : 2], padding[:, 1 : 2 * pairs : 2].flip(0))
    assert int(padding.min()) >= batch.real_nodes
    assert bool((padding[0] == padding[1]).all()) is (field == "x")
    plan = sg.BucketPlan.of([(60, edges, 9)], batch_size=6)
    moved = next(iter(sg.StaticLoader(store.to("cpu"), plan)))
    assert torch.equal(moved.edge_index, batch.edge_index)


def test_what_needs_sorted_edges_says_so():
    """The plan of one order with data of the other; row pointers."""
    ordered, by_destination = stored(), stored(keep_order=False)
    with pytest.raises(sg.PlanMismatch, match="keep_order=True"):
        sg.StaticLoader(by_destination, sg.plan_buckets(ordered, 5))
    with pytest.raises(ValueError, match="kernels=False"):
        sg.StaticLoader(ordered, sg.plan_buckets(ordered, 5), pointers=True)
    rewritten = explain(made(DMPNN), sg.plan_buckets(ordered, 5), ordered).done
    assert sum(place.rewrite == "neighbours" for place in rewritten) > 1
    again = by_destination.in_first_order()
    for name, array in ordered.arrays().items():
        assert (again.arrays()[name] == array).all(), name
