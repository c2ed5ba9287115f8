"""Graphs in request bodies, shaped as in PyG: indices stay within their graph and keep referring to
the edges they were sent with, and incomplete graphs are refused, not guessed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph.plans.plan import BucketPlan
from staticgraph.serving.checked_graphs import BadBody, store_of
from staticgraph.serving.reader import Reader


class Bonds(Data):
    """``back`` is the index of each edge's reverse, ``root`` a node, ``ends`` two nodes per node,
    concatenated along dimension 1; ``frame`` is stacked."""

    def __inc__(self, key, value, *args):
        if key == "back":
            return self.edge_index.size(1)
        return self.num_nodes if key in ("root", "ends") else super().__inc__(key, value, *args)

    def __cat_dim__(self, key, value, *args):
        if key == "frame":
            return None
        return 1 if key == "ends" else super().__cat_dim__(key, value, *args)


def bonds(nodes: int, count: int) -> Bonds:
    """Both directions of each bond, far from sorted."""
    random = torch.Generator().manual_seed(nodes)
    one = torch.randint(nodes, (2, count), generator=random)
    return Bonds(
        x=torch.randn(nodes, 3, generator=random),
        edge_index=torch.cat([one, one.flip(0)], dim=1),
        edge_attr=torch.randn(2 * count, 2, generator=random),
        back=torch.cat([torch.arange(count) + count, torch.arange(count)]),
        root=torch.tensor([nodes - 1]),
        ends=torch.stack([torch.arange(nodes), torch.arange(nodes).flip(0)]),
        frame=torch.randn(2, 2, generator=random),
        u=torch.tensor([float(nodes)]),
    )


GRAPHS = [bonds(5, 4), bonds(2, 3), bonds(3, 0), bonds(7, 6)]
STORE = sg.GraphStore.from_pyg(GRAPHS)
READER = Reader(STORE.schema, {}, False, 50, 1 << 20)


def values_of(graph: Data, **changed) -> dict:
    values = {name: value.tolist() for name, value in graph.to_dict().items()}
    return {name: value for name, value in {**values, **changed}.items() if value is not None}


def json_of(*graphs: dict) -> bytes:
    return json.dumps({"graphs": graphs}).encode()


def arrays_of(graphs: list[Bonds]) -> dict[str, np.ndarray]:
    """Fields of all graphs, concatenated as PyG does, but with indices local to each graph."""
    found = {
        name: np.concatenate([g[name].numpy() for g in graphs], axis=int(name in SIDE_BY_SIDE))
        for name in ("x", "edge_attr", "back", "root", "u", *SIDE_BY_SIDE)
    }
    return found | {
        "frame": np.stack([g.frame.numpy() for g in graphs]),
        "num_nodes": np.array([len(g.x) for g in graphs]),
        "num_edges": np.array([len(g.back) for g in graphs]),
    }


SIDE_BY_SIDE = ("edge_index", "ends")


def same(found, graphs: list[Bonds]) -> None:
    expected = sg.GraphStore.from_pyg(graphs, schema=STORE.schema)
    made = store_of(found, STORE.schema)
    for name, column in expected.columns.items():
        assert np.array_equal(made.columns[name], column), name
    assert np.array_equal(made.edge_src, expected.edge_src)
    assert np.array_equal(made.edge_dst, expected.edge_dst)


def test_indices_come_as_pyg_has_them_and_keep_their_edges():
    same(READER.json(json_of(*map(values_of, GRAPHS))), GRAPHS)
    same(READER.arrays(save(arrays_of(GRAPHS))), GRAPHS)


def test_a_number_of_a_graph_needs_no_brackets():
    graph = GRAPHS[0]
    same(READER.json(json_of(values_of(graph, u=float(graph.u), root=int(graph.root)))), [graph])


def test_a_decimal_number_may_come_as_a_whole_one_of_many_digits():
    """JavaScript writes 1e20 as 100000000000000000000."""
    large = [[10**20, 2**64, -(10**25)], [10**20, 1, 0]]
    found = READER.json(json_of(values_of(bonds(2, 3), x=large)))
    assert found["x"].tolist() == np.array(large, np.float32).tolist()


@pytest.mark.parametrize(
    ("graph", "changed", "words"),
    [
        (0, {"root": [5]}, r"graph 1 has 5 in 'root', which counts 'node', of which it has 5"),
        (0, {"root": [-1]}, r"graph 1 has -1 in 'root'"),
        (2, {"root": [3]}, r"graph 1 has 3 in 'root'.*of which it has 3"),
        (0, {"back": [0] * 7 + [8]}, r"graph 1 has 8 in 'back', which counts 'edge', of which"),
        (1, {"ends": [[0, 2], [0, 1]]}, r"graph 1 has 2 in 'ends'"),
        (0, {"ends": [[0, 1]] * 5}, r"'ends' has shape \[5, 2\].*in dimension 1"),
        (0, {"frame": [[1.0]]}, r"'frame' has shape \[1, 1\]"),
        (0, {"edge_index": None}, r"missing required field `edge_index` - at `\$.graphs\[1\]`"),
        (2, {"edge_index": []}, r"of length 2 - at `\$.graphs\[1\].edge_index`"),
    ],
)
def test_what_would_reach_into_another_graph_or_be_guessed_is_refused(graph, changed, words):
    body = json_of(values_of(GRAPHS[3]), values_of(GRAPHS[graph], **changed))
    with pytest.raises(BadBody, match=words):
        READER.json(body)


def test_an_index_in_arrays_is_looked_at_too():
    rows = arrays_of(GRAPHS)
    rows["root"] = rows["root"] + [0, 1, 0, 0]
    with pytest.raises(BadBody, match="graph 1 has 2 in 'root'"):
        READER.arrays(save(rows))


def test_a_graph_says_its_nodes_where_no_field_does():
    def of(**values) -> bytes:
        return json_of({"edge_index": [[0], [1]], "edge_attr": [[1.0]], **values})

    data = Data(edge_index=torch.tensor([[0], [1]]), edge_attr=torch.ones(1, 1), num_nodes=2)
    schema = sg.GraphStore.from_pyg([data], levels={"edge_attr": "edge"}).schema
    reader = Reader(schema, {}, False, 50, 1 << 20)
    assert reader.json(of(num_nodes=2))["num_nodes"].tolist() == [2]
    for body in (of(), json_of({"edge_index": [[], []], "edge_attr": []})):
        with pytest.raises(BadBody, match="missing required field `num_nodes`"):
            reader.json(body)


def test_points_have_no_edges_to_say():
    schema = sg.GraphStore.from_pyg([Data(x=torch.ones(2, 1))], progress=False).schema
    reader = Reader(schema, {}, False, 50, 1 << 20, edges=False)
    points = store_of(reader.json(json_of({"x": [[1], [2], [3]]})), schema)
    assert points.sizes.tolist() == [[3, 0]]


def test_a_plan_knows_whether_its_data_had_edges():
    with_edges = sg.plan_buckets(STORE, batch_size=2)
    points = sg.GraphStore.from_pyg([Data(x=torch.ones(n, 1)) for n in (2, 3)], progress=False)
    assert with_edges.has_edges is True
    assert sg.plan_buckets(points, batch_size=2).has_edges is False
    assert BucketPlan.of([(8, 9, 3)]).has_edges is None
