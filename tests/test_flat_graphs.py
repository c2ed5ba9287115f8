"""Graphs as flat arrays: the same store as from PyG, the same graphs from bytes, all checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save
from support.drawn import examples
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph.schema import Schema
from staticgraph.serving.checked_graphs import BadBody, store_of
from staticgraph.serving.reader import Reader
from staticgraph.serving.request import concatenated


def graph(nodes: int, seed: int = 0) -> Data:
    random = torch.Generator().manual_seed(1000 * nodes + seed)
    edges = 2 * nodes if nodes > 1 else 0
    return Data(
        x=torch.randint(5, (nodes, 2), generator=random),
        edge_index=torch.randint(max(1, nodes), (2, edges), generator=random),
        edge_attr=torch.randn(edges, 3, generator=random),
        u=torch.randn(2, 3, generator=random, dtype=torch.float64),
        ok=torch.rand(nodes, generator=random) < 0.5,
        y=torch.zeros(1),
        num_nodes=nodes,
    )


SCHEMA = sg.GraphStore.from_pyg(
    [graph(3), graph(5), graph(4)], levels={"u": "graph"}, progress=False
).schema
READER = Reader(SCHEMA, {"x": (5, 5)}, False, 50, 1 << 20)
LISTS = st.lists(st.integers(0, 7), min_size=1, max_size=6)


def arrays_of(graphs: list[Data]) -> dict[str, np.ndarray]:
    found = {name: np.concatenate([g[name].numpy() for g in graphs]) for name in ("x", "edge_attr")}
    found |= {name: np.concatenate([g[name].numpy() for g in graphs]) for name in ("u", "ok")}
    return found | {
        "edge_index": np.concatenate([g.edge_index.numpy() for g in graphs], axis=1),
        "num_nodes": np.array([g.num_nodes for g in graphs]),
        "num_edges": np.array([g.edge_attr.shape[0] for g in graphs]),
    }


def body_of(graphs: list[Data], **changed: np.ndarray) -> bytes:
    return save({**arrays_of(graphs), **changed})


def whole(graphs) -> sg.GraphStore:
    store = store_of(graphs, SCHEMA)
    return concatenated([(store, range(len(store)))])


def same_store(found: sg.GraphStore, graphs: list[Data], schema: Schema = SCHEMA) -> None:
    expected = sg.GraphStore.from_pyg(graphs, schema=schema)
    for name, array in expected.arrays().items():
        if name != "edge_origin":  # empty where nothing was sorted
            assert np.array_equal(found.arrays()[name], array), name
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.edge_attr, other.edge_attr)
    for item in SCHEMA:
        assert found.columns[item.name].dtype == np.dtype(item.dtype), "as compiled loops take it"
    assert all(a.flags.writeable and a.flags.c_contiguous for a in found.arrays().values())


@examples(40)
@given(lists=st.lists(LISTS, min_size=1, max_size=4), data=st.data())
def test_a_store_of_flat_graphs_is_that_of_pyg(lists, data):
    given = [[graph(n, 10 * k + i) for i, n in enumerate(ns)] for k, ns in enumerate(lists)]
    spans, expected = [], []
    schema = replace(SCHEMA, keep_order=data.draw(st.booleans()))
    for graphs in given:
        store = store_of(READER.arrays(body_of(graphs)), schema)
        first = data.draw(st.integers(0, len(store) - 1))
        last = data.draw(st.integers(first + 1, len(store)))
        spans.append((store, range(first, last)))
        expected += graphs[first:last]
    same_store(concatenated(spans), expected, schema)


def test_small_numbers_on_the_way_are_the_same_graphs():
    graphs = [graph(3), graph(6), graph(0)]
    small = {"x": np.uint8, "edge_index": np.int16, "num_nodes": np.uint32, "edge_attr": np.float16}
    arrays = arrays_of(graphs)
    arrays["edge_attr"] = arrays["edge_attr"].astype(np.float16).astype(np.float32)
    for data, rows in zip(graphs, np.split(arrays["edge_attr"], [6, 18]), strict=True):
        data.edge_attr = torch.from_numpy(rows)
    body = save({k: v.astype(small.get(k, v.dtype)) for k, v in arrays.items()})
    assert len(body) < len(save(arrays))
    same_store(whole(READER.arrays(body)), graphs)


GOOD = body_of([graph(3), graph(4)])


WRONG = {
    "negative nodes": (body_of([graph(3)], num_nodes=np.array([-3])), 422, "cannot be"),
    "more nodes than rows": (body_of([graph(3)], num_nodes=np.array([4])), 422, "has not 4 rows"),
    "fewer edges": (body_of([graph(3)], num_edges=np.array([5])), 422, "not [2, sum of num_edges]"),
    "an edge outside": (
        body_of([graph(2), graph(3)], edge_index=np.full((2, 10), 2)), 422, "graph 0: edge_index"
    ),
    "an edge below": (body_of([graph(3)], edge_index=np.full((2, 6), -1)), 422, "outside of 0"),
    "a category": (
        body_of([graph(2), graph(3)], x=np.array([[0, 0]] * 4 + [[0, 5]])), 422,
        "graph 1: 'x' has 5 in column 1 of row 2; the model was trained with 0 to 4",
    ),
    "a fraction": (
        body_of([graph(2), graph(3)], x=np.array([[1.0, 1]] * 3 + [[1, 0.5]] * 2)), 422,
        "graph 1: 'x' has a value that is no int64",
    ),
    "not a number": (
        body_of([graph(2), graph(3)], edge_attr=np.array([[0.0] * 3] * 9 + [[np.nan] * 3])), 422,
        "graph 1: 'edge_attr' has a value that is no float32, or not finite",
    ),
    "half an edge": (
        body_of([graph(2), graph(3)], edge_index=np.array([[0] * 10, [0.0] * 8 + [0.5] * 2])), 422,
        "graph 1: 'edge_index' has a value that is no int64",
    ),
    "numbers in a column": (
        body_of([graph(3)], num_nodes=np.array([[3]])), 422, "num_nodes has shape [1, 1]"
    ),
    "beyond float32": (body_of([graph(3)], edge_attr=np.full((6, 3), 1e300)), 422, "not finite"),
    "2 for a truth value": (body_of([graph(3)], ok=np.full(3, 2, np.uint8)), 422, "is no bool"),
    "beyond int64": (body_of([graph(3)], x=np.full((3, 2), 2**63, np.uint64)), 422, "is no int64"),
    "no graph": (body_of([graph(0)], num_nodes=np.array([], int)), 422, "no graph"),
    "many graphs": (body_of([graph(0)] * 51), 413, "at most 50"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_bytes_are_one_line(name):
    body, status, words = WRONG[name]
    with pytest.raises(BadBody) as refused:
        READER.arrays(body)
    assert refused.value.status == status, refused.value
    assert words in str(refused.value)


@examples(300)
@given(places=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4))
def test_changed_bytes_are_graphs_or_one_line(places):
    body = bytearray(GOOD)
    for place, value in places:
        body[place] = value
    try:
        found = READER.arrays(bytes(body))
    except BadBody:
        return
    store = whole(found)
    for one in store:
        assert one.edge_index.numel() == 0 or one.edge_index.min() >= 0
        assert one.edge_index.numel() == 0 or one.edge_index.max() < one.num_nodes
        assert ((one.x >= 0) & (one.x < 5)).all()
