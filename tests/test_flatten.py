"""From PyG Data to a store: nothing changes, levels are told apart, malformed graphs are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.examples import EXAMPLES
from support.graphs import assert_same_graph
from torch_geometric.data import Batch, Data, HeteroData, TemporalData
from torch_geometric.loader import DataLoader

from staticgraph import datasets
from staticgraph.errors import BadGraph
from staticgraph.store.graph_store import GraphStore

from_pyg = GraphStore.from_pyg

ESOL = EXAMPLES / "esol.npz"


def shuffled(data: Data, rng: torch.Generator) -> Data:
    """The same molecule with its edges in another order, and one attribute per level."""
    order = torch.randperm(data.num_edges, generator=rng)
    return Data(
        x=data.x,
        edge_index=data.edge_index[:, order],
        edge_attr=data.edge_attr[order],
        y=data.y,
        pos=torch.randn(data.num_nodes, 3, generator=rng),
        weight=torch.rand(data.num_edges, generator=rng).double(),
        in_ring=data.x[:, 8] > 0,
        descriptor=torch.randn(3, 2, generator=rng),
        num_nodes=data.num_nodes,
    )


@pytest.fixture(scope="module")
def molecules() -> list[Data]:
    """Real molecules with shuffled edges, the smallest and edgeless ones too, and an empty
    graph."""
    store = datasets.open(ESOL)
    rng = torch.Generator().manual_seed(0)
    few = [*range(40), *np.flatnonzero(store.sizes[:, 1] == 0).tolist()]
    graphs = [shuffled(store[i], rng) for i in few]
    empty = graphs[0].clone()
    for key in ("x", "edge_attr", "pos", "weight", "in_ring"):
        empty[key] = empty[key][:0]
    empty.edge_index, empty.num_nodes = empty.edge_index[:, :0], 0
    return [*graphs, empty]


def test_every_graph_comes_back(molecules):
    assert any(data.num_edges == 0 and data.num_nodes for data in molecules)
    store = GraphStore.from_pyg(molecules)
    levels = {field.name: (field.level, field.rows) for field in store.schema}
    assert levels == {
        "x": ("node", 1),
        "edge_attr": ("edge", 1),
        "y": ("graph", 1),
        "pos": ("node", 1),
        "weight": ("edge", 1),
        "in_ring": ("node", 1),
        "descriptor": ("graph", 3),
    }
    for found, expected in zip(store, molecules, strict=True):
        assert set(found.keys()) | {"num_nodes"} == set(expected.keys()) | {"num_nodes"}
        assert_same_graph(found, expected, ("edge_index", *levels))


# ---------------------------------------------------------------------- levels

RING = torch.tensor([[0, 1, 2], [1, 2, 0]])  # as many edges as nodes


@pytest.mark.parametrize(
    ("graphs", "name", "level"),
    [
        # One graph is enough to tell edges from nodes in the whole data set.
        ([Data(edge_index=RING, a=torch.ones(3), num_nodes=3),
          Data(edge_index=RING, a=torch.ones(4), num_nodes=4)], "a", "node"),
        ([Data(edge_index=RING, a=torch.ones(3), num_nodes=3),
          Data(edge_index=RING, a=torch.ones(3), num_nodes=4)], "a", "edge"),
        # Both levels fit everywhere: the name decides, as in PyG.
        ([Data(edge_index=RING, edge_a=torch.ones(3), num_nodes=3)], "edge_a", "edge"),
        ([Data(edge_index=RING, node_a=torch.ones(3), num_nodes=3)], "node_a", "node"),
        # A target of one row belongs to the graph, even if every graph has one node or one edge.
        ([Data(y=torch.ones(1), num_nodes=1)] * 2, "y", "graph"),
        ([Data(edge_index=torch.tensor([[0], [1]]), y=torch.ones(1), num_nodes=2)], "y", "graph"),
        ([Data(y=torch.ones(3), num_nodes=3), Data(y=torch.ones(2), num_nodes=2)], "y", "node"),
        ([Data(u=torch.ones(2, 5), num_nodes=3), Data(u=torch.ones(2, 5), num_nodes=1)],
         "u", "graph"),
    ],
)  # fmt: skip
def test_levels(graphs, name, level):
    field = GraphStore.from_pyg(graphs).schema[name]
    assert field.level == level
    assert field.rows == (2 if name == "u" else 1)


def test_excluded_attributes_are_left_out_and_strings_no_field():
    graphs = [Data(x=torch.ones(2, 1), smiles="CC", junk=torch.ones(i + 4)) for i in range(2)]
    store = GraphStore.from_pyg(graphs, exclude=["junk"])
    assert [field.name for field in store.schema] == ["x"]


def test_a_data_sets_transform_is_applied():
    class Doubled(list):
        def __getitem__(self, index):
            data = super().__getitem__(index).clone()
            data.x = data.x * 2
            return data

    store = GraphStore.from_pyg(Doubled([Data(x=torch.ones(2, 1))]))
    assert store.name == "Doubled"
    assert store[0].x.tolist() == [[2], [2]]


# ---------------------------------------------------------------------- errors


def graph(nodes: int = 3, **fields) -> Data:
    values = {"x": torch.ones(nodes, 2), "edge_index": RING, "num_nodes": nodes} | fields
    return Data(**{key: value for key, value in values.items() if value is not None})


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([], "list is empty: a store needs at least one graph"),
        ([graph(), (1, 2)], "item 1 of list is of type tuple; expected torch_geometric.data.Data"),
        ([graph(), HeteroData()], "item 1 of list is of type HeteroData; expected"),
        (
            [TemporalData(src=torch.arange(3), dst=torch.arange(3), t=torch.arange(3))],
            "item 0 of list is of type TemporalData; expected torch_geometric.data.Data",
        ),
        (
            [graph(), graph(x=None)],
            "graph 1 has no 'x', which graph 0 has; add it to every graph, or pass exclude=['x']",
        ),
        (
            [graph(), graph(z=torch.ones(3))],
            "graph 1 has ['z'], which graph 0 lacks; add it to every graph, or pass exclude=['z']",
        ),
        (
            [graph(), graph(), graph(x=torch.ones(3, 2).double())],
            "'x' is torch.float64 with rows of shape [2] in graph 2, but torch.float32 with rows "
            "of shape [2] in graph 0: make them the same in every graph",
        ),
        (
            [graph(), graph(x=torch.ones(3, 5))],
            "'x' is torch.float32 with rows of shape [5] in graph 1, but torch.float32 with rows",
        ),
        (
            [graph(), graph(x=torch.ones(7, 2))],
            "'x' has 7 rows in graph 1, which has 3 nodes and 3 edges; expected were 3, one for "
            "each node, as in 1 of the 2 graphs: fix graph 1; or, if its rows are something else, "
            "levels={'x': 'rows'} in GraphStore.from_pyg(graphs, ...) gives it rows of its own, "
            "exclude=['x'] leaves it out",
        ),
        (
            [graph(s=torch.ones(1)), graph(s=torch.ones(1)), graph(s=torch.ones(2))],
            "'s' has 1 row in graph 0, which has 3 nodes and 3 edges, but 2 rows in graph 2, which "
            "has 3 nodes and 3 edges; expected were 3 (one for each node) or 3 (one for each edge) "
            "or as many in every graph: levels={'s': 'rows'} in GraphStore.from_pyg(graphs, ...) "
            "gives it rows of its own, exclude=['s'] leaves it out",
        ),
        (
            [graph(a=torch.ones(3))],
            "'a' has a row per node and one per edge, since every graph has as many of both, and "
            "its name does not tell: pass levels={'a': 'node'} or levels={'a': 'edge'}",
        ),
        ([graph(), graph(2)], "graph 1 has 2 nodes, but its edge 1 joins 1 -> 2: node numbers"),
        ([graph(edge_index=RING - 1)], "graph 0 has 3 nodes, but its edge 0 joins -1 -> 0"),
        ([graph(edge_index=RING.t()[:, :1])], "graph 0 has an edge_index of shape [3, 1] and"),
        ([graph(edge_index=RING.float())], "dtype torch.float32; expected int64 [2, edges]"),
        ([graph(x=torch.ones(3, 2).bfloat16())], "'x' is bfloat16, which a store cannot keep"),
        (
            [graph(x=torch.ones(3, 2).to_sparse())],
            "'x': sparse adjacency matrices are not",
        ),
    ],
)
def test_odd_graphs_are_named(graphs, message):
    with pytest.raises(BadGraph) as caught:
        from_pyg(graphs)
    assert message in str(caught.value)


def test_positions_are_checked_where_asked_and_nan_targets_never():
    bad = graph(pos=torch.tensor([[0.0] * 3, [0, torch.nan, 0], [0] * 3]), y=torch.tensor([[0.0]]))
    good = graph(pos=torch.zeros(3, 3), y=torch.tensor([[torch.nan]]))
    from_pyg([good, bad])
    from_pyg([good, good], check_finite=True)
    with pytest.raises(BadGraph, match=r"graph 1 has pos\[1\] = \[0.0, nan, 0.0\], which is not"):
        from_pyg([good, bad], check_finite=("pos",))


# ---------------------------------------------------------------------- new graphs, known schema


@pytest.fixture(scope="module")
def schema(molecules):
    return GraphStore.from_pyg(molecules, exclude=["weight", "descriptor"]).schema


def test_new_graphs_follow_the_schema_and_need_no_target(molecules, schema):
    graphs = [data.clone() for data in molecules[:3]]
    for data in graphs:
        del data.y, data.weight
    store = from_pyg(graphs, schema=schema)
    assert {field.name for field in store.schema} == {field.name for field in schema}
    assert store.columns["y"].tolist() == [[0.0]] * 3
    assert torch.equal(store[2].x, graphs[2].x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.__delattr__("pos"), "graph 1 has no 'pos', which the plan expects"),
        (lambda d: d.update({"x": d.x.float()}), "'x' is torch.float32 with rows of shape [9]"),
    ],
)
def test_new_graphs_that_differ_are_named(molecules, schema, change, message):
    graphs = [data.clone() for data in (molecules[1], molecules[0])]
    change(graphs[1])
    with pytest.raises(BadGraph) as caught:
        from_pyg(graphs, schema=schema)
    assert message in str(caught.value)


def test_rows_that_only_add_up_are_refused(molecules, schema):
    """One row too few in one graph and one too many in another would shift every graph between."""
    graphs = [data.clone() for data in molecules[:2]]
    graphs[0].update({"x": graphs[0].x[:-1], "num_nodes": graphs[0].num_nodes})
    graphs[1].x = torch.cat([graphs[1].x, graphs[1].x[:1]])
    with pytest.raises(BadGraph, match=r"'x' has 31 rows in graph 0, which has 32 nodes"):
        from_pyg(graphs, schema=schema)


def test_levels_settle_what_lengths_cannot_tell():
    graphs = [Data(edge_index=RING, num_nodes=4, stress=torch.eye(3)) for _ in range(2)]
    assert GraphStore.from_pyg(graphs).schema["stress"].level == "edge"
    told = GraphStore.from_pyg(graphs, levels={"stress": "graph"})
    assert (told.schema["stress"].level, told.schema["stress"].rows) == ("graph", 3)
    with pytest.raises(BadGraph, match="has not one row per node in every graph"):
        GraphStore.from_pyg(graphs, levels={"stress": "node"})


def test_a_batch_is_no_graph():
    """Its graphs would become one graph, with one prediction and one target for all."""
    one = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    two = Batch.from_data_list([one, one])
    words = r"item 1 is a DataBatch of 2 graphs.*pass its graphs, batch.to_data_list\(\)"
    with pytest.raises(BadGraph, match=words):
        from_pyg([Batch.from_data_list([one]), two])
    typed = Batch.from_data_list([HeteroData(a={"x": torch.ones(2, 1)})] * 2)
    with pytest.raises(BadGraph, match="item 0 is a HeteroDataBatch of 2 graphs"):
        from_pyg([typed])
    with pytest.raises(BadGraph, match=r"DataLoader gives batches, not graphs: .* loader\.dataset"):
        from_pyg(DataLoader([one] * 4, batch_size=2))
    assert len(from_pyg(two.to_data_list())) == 2


def test_edges_are_said_by_every_graph_or_by_none():
    edges = {"edge_index": torch.tensor([[0], [1]])}
    with_edges, without = Data(x=torch.ones(2, 1), **edges), Data(x=torch.ones(2, 1))
    with pytest.raises(BadGraph, match="graph 1 has no edge_index, which graph 0 has; add it, of"):
        from_pyg([with_edges, without])
    with pytest.raises(BadGraph, match="graph 1 has an edge_index, which graph 0 lacks; add it"):
        from_pyg([without, with_edges])
    assert from_pyg([without, without]).sizes.tolist() == [[2, 0]] * 2


def test_graphs_of_another_kind_than_the_plans_are_told_so():
    plain, typed = Data(x=torch.ones(2, 1)), HeteroData(a={"x": torch.ones(2, 1)})
    for made, other, words in (
        (plain, typed, "HeteroData; expected torch_geometric.data.Data, as the plan has"),
        (typed, plain, "Data; expected HeteroData, as the plan has"),
    ):
        schema = from_pyg([made]).schema
        with pytest.raises(BadGraph, match=f"item 0 of list is of type {words}"):
            from_pyg([other], schema=schema)
    with pytest.raises(BadGraph, match="a dict is not a data set: pass a list of its graphs"):
        from_pyg({"first": plain})
