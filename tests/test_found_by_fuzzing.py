"""What the fuzzer of ``tests/fuzz`` found: one small test each, so that it stays fixed."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import real_ids
from support.index_rules import Clusters, Triplets
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import ChebConv, ClusterGCNConv, GATConv, GCNConv

import staticgraph as sg


def graph(nodes: int = 2, **more) -> Data:
    return Data(
        x=torch.rand(nodes, 3), edge_index=torch.zeros(2, 0).long(), y=torch.rand(1, 1), **more
    )


def batch_of(graphs: list[Data], pointers: bool = False) -> sg.StaticBatch:
    store = sg.GraphStore.from_pyg(graphs)
    return next(iter(sg.StaticLoader(store, sg.plan_buckets(store, 2), pointers=pointers)))


def test_an_index_that_counts_nothing_comes_back():
    """If every graph adds zero, the rule of the index names no level."""
    empty = Clusters(
        **graph(0).to_dict(), num_clusters=0, cluster_index=torch.zeros(2, 0).long(), num_nodes=0
    )
    (found,) = batch_of([empty]).to_data_list()
    assert found.cluster_index.shape == (2, 0)
    assert found.__inc__("cluster_index", found.cluster_index) == 0


@pytest.mark.parametrize("told", [{"notes": "graph"}, {}])
def test_as_many_rows_of_graphs_as_clusters_are_no_clusters(told):
    """One graph with two clusters and two rows of another level: the clusters are named after the
    number that counts them, not after a field that the user declared as a graph's."""
    data = Clusters(
        **graph(3, num_clusters=2, notes=torch.rand(2)).to_dict(),
        cluster_index=torch.tensor([[0, 1, 2], [1, 0, 1]]),
    )
    store = sg.GraphStore.from_pyg([data], levels=told)
    assert [axis.name for axis in store.schema.axes] == (["clusters"] if told else ["notes"])
    batch = sg.StaticBatch.of(store, [0], sg.plan_buckets(store, 1).capacities[0])
    (found,) = batch.to_data_list()
    assert torch.equal(found.notes, data.notes)
    assert torch.equal(found.cluster_index, data.cluster_index)
    assert found.__inc__("cluster_index", found.cluster_index).flatten().tolist() == [3, 2]


def test_a_field_of_graphs_may_have_no_columns():
    graphs = [graph(n, note=torch.zeros(1, 0), notes=torch.zeros(3, 0)) for n in (1, 2)]
    batch = batch_of(graphs)
    assert batch.note.shape == (batch.num_graphs, 0)
    assert batch.notes.shape == (3 * batch.num_graphs, 0)
    assert [tuple(g.notes.shape) for g in batch.to_data_list()] == [(3, 0), (3, 0)]


class OneConv(nn.Module):
    """A layer that removes self-loops and adds them again."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


CONVS = {
    "cheb": lambda: ChebConv(3, 2, K=2),
    "gat": lambda: GATConv(3, 2),
    "gcn": lambda: GCNConv(3, 2),
    "loops added": lambda: ClusterGCNConv(3, 2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("graphs", range(10, 15))
def test_loops_have_a_row_count_of_their_own(conv, graphs):
    """Five nodes and six edges of a bucket make eleven or twelve rows with self-loops: in a bucket
    with that many graphs, those are not rows of graphs."""
    data = Data(
        x=torch.rand(4, 3).double(),
        edge_index=torch.tensor([[0, 1, 2, 0], [1, 0, 0, 2]]),
        y=torch.rand(1, 1),
    )
    store = sg.GraphStore.from_pyg([data])
    model = OneConv(CONVS[conv]()).double()
    expected = model(store[0].x, store[0].edge_index)
    runner = sg.StaticGraphRunner(model, [(5, 6, graphs)], "eager")
    batch = sg.StaticBatch.of(store, [0], (5, 6, graphs))
    assert torch.allclose(runner.eval_step(batch).out[:4], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("conv", ["gat", "cheb"])
def test_rows_made_on_the_way_are_no_tensors_of_the_model(conv):
    """The run that tells the model's own sizes from the batch's asked whether the rows it was about
    to make were known, and took them for the model's: buckets that happened to have that many rows
    were refused."""
    graphs = [graph(n) for n in (1, 1, 1, 1, 4)]
    for each in graphs:
        each.edge_index = torch.zeros(2, each.num_nodes).long()
    store = sg.GraphStore.from_pyg(graphs)
    model = OneConv(CONVS[conv]())
    whole = Batch.from_data_list(graphs)
    expected = model(whole.x, whole.edge_index)
    for nodes in range(20, 50):
        runner = sg.StaticGraphRunner(copy.deepcopy(model), [(nodes, 12, 9)], "eager")
        out = runner.eval_step(sg.StaticBatch.of(store, range(5), (nodes, 12, 9))).out
        torch.testing.assert_close(out[: len(expected)], expected)


def typed(a: int, b: int) -> HeteroData:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.rand(a, 3), torch.rand(b, 2)
    for source, name, target in (("a", "to", "b"), ("b", "back", "a"), ("a", "near", "a")):
        data[source, name, target].edge_index = torch.zeros(2, 0).long()
    data.y = torch.rand(1, 1)
    return data


@pytest.mark.parametrize("sizes", [[(0, 0)], [(0, 1), (5, 0), (1, 0)]])
def test_a_plan_ends_where_types_have_few_rows(sizes):
    """Making a total differ from one type made it equal to another, and back, without end."""
    store = sg.GraphStore.from_pyg([typed(*size) for size in sizes])
    for capacity in sg.plan_buckets(store, num_buckets=1, graphs=4).capacities:
        rows = dict(capacity.extra)
        totals = [rows["a"] + rows["b"], sum(rows.values()) - rows["a"] - rows["b"]]
        numbers = [capacity.graphs, *rows.values(), *totals]
        assert len(set(numbers)) == len(numbers)


def test_a_preflight_of_single_graphs_has_one_to_look_at():
    """A bucket of one graph left none next to the padding graph that the check wants."""
    graphs = [graph(n) for n in (2, 3, 5, 8)]
    for each in graphs:
        each.edge_index = torch.zeros(2, 2 * each.num_nodes).long()
    store = sg.GraphStore.from_pyg(graphs)
    model = sg.models.build("gin", store, hidden=4, layers=1)
    report = sg.check(model, sg.plan_buckets(store, batch_size=1), store)
    assert report.ok
    assert report.parity is not None


class Rings(Data):
    """As many edges as nodes; ``triplets`` pairs edges, and ``ends`` pairs a node with an edge."""

    def __inc__(self, key, value, *args, **kwargs):
        if key == "triplets":
            return self.num_edges
        if key == "ends":
            return torch.tensor([[self.num_nodes], [self.edge_index.size(1)]])
        return super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key, value, *args, **kwargs):
        own = key in ("triplets", "ends")
        return 1 if own else super().__cat_dim__(key, value, *args, **kwargs)


def ring(nodes: int, kind=Rings, **more) -> Data:
    """A ring whose edges are not sorted by destination, so that the store renumbers them."""
    at = torch.arange(nodes)
    back = at.flip(0)
    return kind(
        x=torch.rand(nodes, 3),
        edge_index=torch.stack([(back + 1) % nodes, back]),
        edge_attr=torch.rand(nodes, 2),
        triplets=torch.stack([at, (at + 1) % nodes]),
        triplet_index=torch.stack([at, at]),
        ends=torch.stack([at, at]),
        y=torch.rand(1, 1),
        **more,
    )


@pytest.mark.parametrize("sizes", [(4,), (3, 5, 4)])
def test_rings_are_asked_again_what_their_index_counts(sizes):
    """Every graph has as many nodes as edges, so the numbers alone do not tell them apart."""
    graphs = [ring(nodes) for nodes in sizes]
    levels = {"triplets": "triplets", "triplet_index": "edge", "ends": "edge"}
    store = sg.GraphStore.from_pyg(graphs, levels=levels)
    assert store.schema["triplets"].counts == ("edge",)
    assert store.schema["triplet_index"].counts == ("node",), "PyG's own rule"
    assert store.schema["ends"].counts == ("node", "edge")
    batch = sg.StaticBatch.of(
        store, range(len(sizes)), sg.plan_buckets(store, len(sizes)).capacities[0]
    )
    at = 0
    for data, found in zip(graphs, batch.to_data_list(), strict=True):
        of = {tuple(e): a for e, a in zip(data.edge_index.T.tolist(), data.edge_attr, strict=True)}
        padded = batch.triplets[:, at : at + data.num_nodes]
        for row in range(2):
            ends = [tuple(e) for e in data.edge_index[:, data.triplets[row]].T.tolist()]
            for place, edge in zip(padded[row].tolist(), ends, strict=True):
                assert torch.equal(batch.edge_attr[place], of[edge])
                assert (batch.edge_index[:, place] - at).tolist() == list(edge)
        assert found.triplets.shape == data.triplets.shape
        at += data.num_nodes
    assert not batch.edge_mask[batch.triplets[:, at:]].any(), "padding counts padding"


@pytest.mark.parametrize(
    ("nodes", "clusters", "edges"), [(3, 2, 3), (3, 3, 3), (3, 2, 2), (1, 1, 1)]
)
def test_clusters_are_known_by_their_number(nodes, clusters, edges):
    """Where every graph has as many edges as nodes, or as clusters. These edges are not sorted, so
    that a store renumbers them."""
    data = Clusters(
        **graph(nodes, num_clusters=clusters).to_dict(),
        cluster_index=torch.tensor([[0, 1, 2], [0, 0, clusters - 1]])[:, :nodes],
    )
    data.edge_index = torch.tensor([[0, 1, 2], [2, 1, 0]])[:, :edges] % nodes
    levels = {"cluster_index": "node", "num_clusters": "graph"}
    store = sg.GraphStore.from_pyg([data, data.clone()], levels=levels)
    assert store.schema["cluster_index"].counts == ("node", "clusters")
    batch = sg.StaticBatch.of(store, [0, 1], sg.plan_buckets(store, 2).capacities[0])
    found = batch.to_data_list()
    assert [one.cluster_index.tolist() for one in found] == [data.cluster_index.tolist()] * 2


def test_a_loss_in_a_bucket_of_one_edge():
    """A column of one target per graph is no row of the only edge."""
    data = graph(1)
    store = sg.GraphStore.from_pyg([data])
    batch = sg.StaticBatch.of(store, [0], sg.Capacity(2, 1, 3))
    model = nn.Linear(3, 1)
    runner = sgd_runner(
        model,
        [batch.capacity],
        forward=lambda model, batch: model(
            torch.zeros(batch.num_graphs, 3).index_add(0, batch.batch, batch.x)
        ),
    )
    expected = (model(data.x) - data.y).square().mean()
    assert float(runner.step(batch)) == pytest.approx(float(expected))


@pytest.mark.slow  # on a fresh clone, for what its cases compile
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "sizes",
    [
        [(0, 0)] * 4 + [(1, 1), (1, 4)],
        [(0, 0)] * 12 + [(1, 1), (1, 4)] * 3,
        [(0, 0)] * 4 + [(1, 4), (3, 0)],  # one node, and more edges than the class below takes
        [(0, 0)] * 4 + [(1, 4), (3, 0), (3, 7), (9, 2)],
    ],
)
def test_classes_without_nodes_and_of_one_node_hold_their_own_rows(sizes):
    """A class without nodes has a capacity for graphs of one node, but need not hold the rows of
    those that have too many edges for it."""
    graphs = [
        Triplets(
            x=torch.rand(nodes, 2),
            edge_index=torch.zeros(2, edges, dtype=torch.int64),
            triplets=torch.zeros(2, 3 * (edges > 1), dtype=torch.int64),
            y=torch.rand(1, 1),
        )
        for nodes, edges in sizes
    ]
    store = sg.GraphStore.from_pyg(graphs, levels={"triplets": "triplets"})
    for buckets in (2, 3):
        plan = sg.plan_buckets(store, num_buckets=buckets, graphs=4)
        loader = sg.StaticLoader(store, plan, exact=False)
        seen = [graph for batch in loader for graph in real_ids(batch)]
        assert sorted(seen) == list(range(len(sizes)))


def test_a_field_of_two_rows_a_graph_and_no_column_is_checked():
    """The check of padding could not view its elements as rows of two."""
    graphs = [graph(n, cell=torch.zeros(2, 0)) for n in (2, 3)]
    store = sg.GraphStore.from_pyg(graphs, levels={"cell": "graph"})
    runner = sg.StaticGraphRunner(
        nn.Linear(3, 1), sg.plan_buckets(store, 2), "eager", forward=lambda net, b: net(b.x)
    )
    assert len(runner.warmup(store).predict(graphs)) == 2
