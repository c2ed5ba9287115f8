"""Graphs as flat arrays: the same store as from PyG, the same graphs from bytes, all checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph.schema import Schema
from staticgraph.serving import compact
from staticgraph.serving.bodies.bad_body import BadBody
from staticgraph.serving.bodies.checked_graphs import cast, checked
from staticgraph.serving.bodies.flat_graphs import FlatSpan, split, store_of, together, whole
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.processes import frames


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
    return compact.encode({**arrays_of(graphs), **changed}, SCHEMA)


def same_store(found: sg.GraphStore, graphs: list[Data], schema: Schema = SCHEMA) -> None:
    expected = sg.GraphStore.from_pyg(graphs, schema=schema, progress=False)
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
    for graphs in given:
        flat = READER.compact(body_of(graphs))
        first = data.draw(st.integers(0, len(flat) - 1))
        last = data.draw(st.integers(first + 1, len(flat)))
        spans.append(FlatSpan(flat, first, last))
        expected += graphs[first:last]
    schema = replace(SCHEMA, keep_order=data.draw(st.booleans()))
    same_store(store_of(spans, schema), expected, schema)


@examples(40)
@given(lists=st.lists(LISTS, min_size=1, max_size=4))
def test_requests_come_over_a_line_as_they_were(lists):
    given = [[graph(n, 10 * k + i) for i, n in enumerate(ns)] for k, ns in enumerate(lists)]
    flats = [READER.compact(body_of(graphs)) for graphs in given]
    joined = together([whole(flat) for flat in flats], SCHEMA)
    asked = frames.RequestFrame(7, [len(flat) for flat in flats], joined)
    sent = frames.ask_frame(asked, SCHEMA)
    found = frames.asked_of(bytearray(sent[frames.HEADER.size :]), SCHEMA)
    assert (found.first, found.counts) == (7, asked.counts)
    for span, graphs in zip(split(found.graphs, found.counts), given, strict=True):
        same_store(store_of([span], SCHEMA), graphs)


def test_small_numbers_on_the_way_are_the_same_graphs():
    graphs = [graph(3), graph(6), graph(0)]
    small = {"x": np.uint8, "edge_index": np.int16, "num_nodes": np.uint32, "edge_attr": np.float16}
    arrays = arrays_of(graphs)
    arrays["edge_attr"] = arrays["edge_attr"].astype(np.float16).astype(np.float32)
    for data, rows in zip(graphs, np.split(arrays["edge_attr"], [6, 18]), strict=True):
        data.edge_attr = torch.from_numpy(rows)
    body = compact.encode({k: v.astype(small.get(k, v.dtype)) for k, v in arrays.items()}, SCHEMA)
    assert len(body) < len(compact.encode(arrays, SCHEMA))
    same_store(store_of([whole(READER.compact(body))], SCHEMA), graphs)


def test_bytes_are_as_documented():
    body = body_of([graph(2)])
    assert body[:16] == b"SGF1" + b"".join(n.to_bytes(4, "little") for n in (1, 7, 0))
    int64, float32 = 7, 9
    assert body[16:24] == int64.to_bytes(4, "little") + (1).to_bytes(4, "little"), "num_nodes"
    names = compact.names(SCHEMA)
    place = 16 + 8 * names.index("edge_attr")
    assert body[place : place + 8] == float32.to_bytes(4, "little") + (12).to_bytes(4, "little")
    first = 16 + 8 * len(names)
    assert body[first : first + 8] == (2).to_bytes(8, "little"), "the first array"
    with pytest.raises(TypeError, match="'x' is <U1"):
        body_of([graph(2)], x=np.array(["a"]))


GOOD = body_of([graph(3), graph(4)])


def put(body: bytes, at: int, value: int) -> bytes:
    return body[:at] + value.to_bytes(4, "little") + body[at + 4 :]


WRONG = {
    "nothing": (b"", 400, "does not begin"),
    "another magic": (b"SGF2" + GOOD[4:], 400, "does not begin"),
    "cut short": (GOOD[:-3], 400, "ends beyond the body"),
    "cut in its header": (GOOD[:40], 400, "and a header"),
    "more than its arrays": (GOOD + b"1234", 400, "4 bytes more than"),
    "another number of graphs": (put(GOOD, 4, 9), 400, "9 graphs, its num_nodes 2"),
    "another number of arrays": (put(GOOD, 8, 2), 400, "has 2 arrays"),
    "an unknown dtype": (put(GOOD, 16, 77), 400, "unknown dtype"),
    "an array of 32 GiB": (put(GOOD, 20, 2**32 - 1), 400, "ends beyond"),
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
    "a fraction": (body_of([graph(3)], x=np.full((3, 2), 0.5)), 422, "is no int64"),
    "not a number": (body_of([graph(3)], edge_attr=np.full((6, 3), np.nan)), 422, "not finite"),
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
        READER.compact(body)
    assert refused.value.status == status, refused.value
    assert words in str(refused.value)


@examples(300)
@given(places=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4))
def test_changed_bytes_are_graphs_or_one_line(places):
    body = bytearray(GOOD)
    for place, value in places:
        body[place] = value
    try:
        found = READER.compact(bytes(body))
    except BadBody:
        return
    store = store_of([whole(found)], SCHEMA)
    for one in store:
        assert one.edge_index.numel() == 0 or one.edge_index.min() >= 0
        assert one.edge_index.numel() == 0 or one.edge_index.max() < one.num_nodes
        assert ((one.x >= 0) & (one.x < 5)).all()


def test_what_was_checked_shares_no_memory():
    arrays = {k: v.copy() for k, v in arrays_of([graph(3)]).items()}
    found = checked(arrays, READER.fields, {})
    for name in ("x", "edge_attr", "u"):
        assert not np.shares_memory(found.columns[name], arrays[name]), name
    assert not np.shares_memory(found.edge_index, arrays["edge_index"])
    assert cast(np.array([True]), "ok", "int64").tolist() == [1]
