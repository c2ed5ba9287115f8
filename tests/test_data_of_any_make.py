"""Graphs as people have them: other byte orders, NumPy, generators; and names that
decide where lengths cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import staticgraph as sg
from staticgraph.errors import BadGraph

PATH = np.array([[0, 1, 2, 1], [1, 2, 1, 0]])
RING = torch.tensor([[0, 1, 2], [1, 2, 0]])
NONE = np.empty(0, np.int64)


def graphs(count: int = 5, **fields) -> list[Data]:
    edge_index = torch.from_numpy(PATH)
    return [Data(edge_index=edge_index, num_nodes=3, **fields) for _ in range(count)]


def first_batch(store: sg.GraphStore):
    return next(iter(sg.StaticLoader(store, sg.plan_buckets(store, batch_size=2))))


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2", ">i2", ">i4", ">i8", ">u2"])
def test_the_other_byte_order_gives_the_same_numbers(dtype):
    values = np.arange(6, dtype=dtype).reshape(3, 2) * 40
    native = np.dtype(dtype).newbyteorder("=")
    for store in (
        sg.GraphStore.from_pyg(graphs(x=values, edge_attr=values[[0, 1, 2, 0], :1])),
        sg.GraphStore.from_arrays(
            np.full(5, 3, ">i4"),
            np.full(5, 4, ">i8"),
            np.tile(PATH[0], 5).astype(">i2"),
            np.tile(PATH[1], 5).astype(">i4"),
            {"x": ("node", np.tile(values, (5, 1)))},
        ),
    ):
        assert store.schema["x"].dtype == native.name
        batch = first_batch(store)
        np.testing.assert_array_equal(batch.x[:3].numpy(), values.astype(native))
        np.testing.assert_array_equal(store[4].x.numpy(), values.astype(native))


def test_what_no_tensor_holds_is_refused_by_name():
    wide = np.ones((3, 1), np.longdouble)
    with pytest.raises(BadGraph, match=r"field 'x' has dtype .*, which no tensor holds; give it"):
        sg.GraphStore.from_pyg(graphs(x=wide))
    with pytest.raises(BadGraph, match=r"field 'x' has dtype .*, which no tensor holds; give it"):
        sg.GraphStore.from_arrays(np.array([3]), np.array([0]), NONE, NONE, {"x": ("node", wide)})
    with pytest.raises(BadGraph, match="field 'x' has dtype complex64; use numbers"):
        sg.GraphStore.from_pyg(graphs(x=wide.astype(np.complex64)))


def test_a_string_is_one_name_and_not_its_letters():
    made = graphs(x=torch.ones(3, 1), tax=torch.full((3, 1), float("nan")), y=torch.ones(1))
    kept = sg.GraphStore.from_pyg(made, exclude="tax")
    assert [field.name for field in kept.schema] == ["x", "y"]
    for names in ("x", ["x"], ("x",)):
        sg.GraphStore.from_pyg(made, check_finite=names)
    for names in ("tax", ["tax"], True):
        with pytest.raises(BadGraph, match=r"graph 0 has tax\[0\] = \[nan\]"):
            sg.GraphStore.from_pyg(made, check_finite=names)


def test_a_field_without_rows_says_that_it_has_none():
    with pytest.raises(BadGraph, match="'empty' has no row in any graph, so that nothing tells"):
        sg.GraphStore.from_pyg(graphs(empty=torch.empty(0, 3)))
    store = sg.GraphStore.from_pyg(graphs(empty=torch.empty(0, 3)), levels={"empty": "rows"})
    assert store[2].empty.shape == (0, 3)


def test_numbers_of_numpy_are_rows():
    store = sg.GraphStore.from_pyg(graphs(y=np.float32(0.5), k=np.int16(3), up=PATH[::-1, 0] * 1.0))
    assert (store[0].y.tolist(), store[0].k.tolist()) == ([0.5], [3])
    assert store.schema["up"].rows == 2


@pytest.mark.parametrize("dtype", ["i8", ">i4", "u1"])
def test_edges_as_numpy(dtype):
    made = [Data(x=torch.ones(3, 1), edge_index=PATH.astype(dtype)) for _ in range(3)]
    assert sg.GraphStore.from_pyg(made)[1].edge_index.tolist() == PATH.tolist()
    hetero = HeteroData()
    hetero["a"].num_nodes = 3
    hetero["a", "to", "a"].edge_index = PATH.astype(dtype)
    again = sg.GraphStore.from_pyg([hetero])[0]
    assert again["a", "to", "a"].edge_index.tolist() == PATH.tolist()
    with pytest.raises(BadGraph, match="graph 0 has an edge_index of type list; expected a tensor"):
        sg.GraphStore.from_pyg([Data(num_nodes=3, edge_index=PATH.tolist())])


def test_graphs_one_by_one():
    made = graphs(x=torch.ones(3, 1))
    for source in ((graph for graph in made), dict(enumerate(made)).values(), iter(made)):
        assert len(sg.GraphStore.from_pyg(source)) == 5
    with pytest.raises(BadGraph, match="generator is empty: a store needs at least one graph"):
        sg.GraphStore.from_pyg(graph for graph in made[:0])
    with pytest.raises(BadGraph, match=r"a Data is a single graph: pass a list, \[data\]"):
        sg.GraphStore.from_pyg(made[0])
    with pytest.raises(BadGraph, match="a NoneType is not a data set: pass a list"):
        sg.GraphStore.from_pyg(None)


# ---------------------------------------------------------------------- as many nodes as edges


def rings(**fields) -> list[Data]:
    return [Data(edge_index=RING, num_nodes=3, **fields) for _ in range(4)]


@pytest.mark.parametrize(
    ("name", "level"),
    [("pe", "node"), ("random_walk_pe", "node"), ("n_id", "node"), ("e_id", "edge"),
     ("edge_attr", "edge"), ("my_edge_kind", "edge"), ("bond", "edge"),
     ("node_kind", "node"), ("x", "node"),
     ("pos", "node"), ("train_mask", "node")],
)  # fmt: skip
def test_names_tell_where_every_graph_has_as_many_nodes_as_edges(name, level):
    value = torch.tensor([7, 8, 9])
    store = sg.GraphStore.from_pyg(rings(**{name: value}))
    assert store.schema[name].level == level
    assert store[2][name].tolist() == [7, 8, 9]
    rows = first_batch(store)[name][:3].tolist()
    assert rows == ([9, 7, 8] if level == "edge" else [7, 8, 9]), "edges by destination"
