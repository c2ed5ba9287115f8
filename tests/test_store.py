"""GraphStore: data round-trip, order is right, files are checked, errors name the graph."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.examples import EXAMPLES

from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.store.columns import compact
from staticgraph.store.graph_store import GraphStore

NONE = np.empty(0, np.int64)


@st.composite
def flat_graphs(draw):
    """Node counts, edge counts and local endpoints of a few graphs, some of them empty."""
    sizes = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=8))
    nodes = np.array([n for n, _ in sizes])
    edges = np.array([e if n else 0 for n, e in sizes])
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    ends = [rng.integers(0, n, (2, e)) for n, e in zip(nodes, edges, strict=True) if e]
    src, dst = np.concatenate(ends, axis=1) if ends else np.empty((2, 0), np.int64)
    return nodes, edges, src, dst


def build(nodes, edges, src, dst, **fields) -> GraphStore:
    return GraphStore.from_arrays(np.array(nodes), np.array(edges), src, dst, fields)


# ---------------------------------------------------------------------- structure


@examples(150)
@given(flat_graphs())
def test_edges_are_sorted_with_row_pointers_and_transpose(graphs):
    nodes, edges, src, dst = graphs
    number = np.arange(len(src))
    store = build(nodes, edges, src, dst, edge_number=("edge", number))
    row_ptr_oracle = []
    for g in range(len(nodes)):
        span = slice(store.edge_offsets[g], store.edge_offsets[g + 1])
        order = np.argsort(dst[span], kind="stable")
        np.testing.assert_array_equal(store.edge_dst[span], dst[span][order])
        np.testing.assert_array_equal(store.edge_src[span], src[span][order])
        np.testing.assert_array_equal(store.columns["edge_number"][span], number[span][order])
        by_source = np.argsort(src[span][order], kind="stable")
        np.testing.assert_array_equal(store.transpose[span], by_source)
        first = np.searchsorted(dst[span][order], np.arange(nodes[g]), side="left")
        row_ptr_oracle.append(store.edge_offsets[g] + first)
    expected = np.append(np.concatenate(row_ptr_oracle), len(src))
    np.testing.assert_array_equal(store.row_ptr, expected)


def test_index_like_a_list(esol):
    assert esol[-1].num_nodes == esol[len(esol) - 1].num_nodes
    for beyond in (len(esol), -len(esol) - 1):
        with pytest.raises(IndexError, match=f"graph {beyond} of 1128"):
            esol[beyond]
        with pytest.raises(IndexError, match=f"graph {beyond} of 1128"):
            esol[[0, beyond]]


@pytest.mark.parametrize(
    ("which", "graphs"),
    [
        (slice(3), [0, 1, 2]),
        (slice(-2, None), [1126, 1127]),
        (slice(5, 0, -2), [5, 3, 1]),
        ([4, -1, 4], [4, 1127, 4]),
        (np.array([7, 2], np.uint8), [7, 2]),
        (torch.tensor([3]), [3]),
        (np.arange(1128) == 9, [9]),
        (torch.zeros(1128, dtype=torch.bool), []),
        (range(2), [0, 1]),
        ([], []),
    ],
)
def test_several_graphs_are_a_list(esol, which, graphs):
    found = esol[which]
    assert isinstance(found, list)
    assert len(found) == len(graphs)
    for graph, data in zip(graphs, found, strict=True):
        assert torch.equal(data.edge_index, esol[graph].edge_index)
        assert torch.equal(data.x, esol[graph].x)


def test_what_means_no_graphs_is_refused(esol):
    with pytest.raises(IndexError, match=r"a mask of shape \[5\] for 1,128 graphs"):
        esol[np.ones(5, bool)]
    with pytest.raises(ValueError, match=r"graphs: entry 0 is 0.5, which is not a whole number"):
        esol[0.5]


def test_cardinality_is_what_an_embedding_needs(esol):
    with np.load(EXAMPLES / "esol.npz") as raw:
        expected = tuple(int(row.max()) + 1 for row in raw["atom_feat"])
    assert esol.cardinality("x") == expected
    assert GraphStore.zeros(esol.schema).cardinality("edge_attr") == (1, 1, 1), "without edges"


# ---------------------------------------------------------------------- compact columns


@pytest.mark.parametrize("odd", [0.5, -1.0, 256.0, np.nan, np.inf, -0.0])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_stay_unless_a_byte_holds_them_exactly(odd, dtype):
    assert compact(np.array([0, 1, 255], dtype)).dtype == np.uint8
    column = np.array([0, 1, odd], dtype)
    assert compact(column).dtype == dtype
    assert compact(column).tobytes() == column.tobytes()


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"],
)
@pytest.mark.parametrize("level", ["node", "edge", "graph"])
def test_every_dtype_and_level_round_trips(dtype, level, tmp_path):
    nodes, edges = np.array([2, 0, 1]), np.array([3, 0, 1])
    rows = {"node": 3, "edge": 4, "graph": 3}[level]
    values = np.random.default_rng(1).integers(0, 2, (rows, 2, 2)).astype(dtype)
    store = build(nodes, edges, [1, 0, 1, 0], [1, 1, 0, 0], f=(level, values))
    store.save(tmp_path / "s")
    for same in (store, GraphStore.load(tmp_path / "s")):
        out = np.concatenate([data.f.numpy() for data in same])
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, values)


def test_a_store_does_not_change_with_the_arrays_it_came_from():
    x = np.array([0.5, 1.5])
    store = build([2], [0], NONE, NONE, x=("node", x))
    x[:] = 7
    assert store[0].x.tolist() == [0.5, 1.5]


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], NONE, NONE, {}), "data holds no graph; a store needs at least one"),
        (([2], [1, 1], NONE, NONE, {}), "node counts of 1 graph, edge counts of 2"),
        (([2, -1], [0, 0], NONE, NONE, {}), "graph 1 of data has -1 rows of node"),
        (([2], [1], [0, 1], [0], {}), "2 sources and 1 destination for 1 edge"),
        (([2], [1], [0.0], [1.0], {}), "edges are float64 and float64; use whole numbers"),
        (
            ([2, 3], [1, 2], [0, 0, 3], [1, 1, 0], {}),
            "graph 1 has 3 nodes, but its edge 1 joins 3 -> 0: node numbers must be from 0 and "
            "below 3; fix edge_index or set num_nodes",
        ),
        (([2, 0], [0, 1], [-1], [0], {}), "graph 1 has 0 nodes, but its edge 0 joins -1 -> 0"),
        (
            ([2], [0], NONE, NONE, {"x": ("node", np.zeros((3, 4)))}),
            "field 'x' has shape (3, 4); a node-level field of this data set has 2 rows",
        ),
        (
            ([2], [0], NONE, NONE, {"x": ("node", np.array(["a", "b"]))}),
            "field 'x' has dtype <U1; use numbers or booleans",
        ),
    ],
)
def test_bad_arrays_are_named(arguments, message):
    nodes, edges, src, dst, fields = arguments
    with pytest.raises(BadGraph) as caught:
        GraphStore.from_arrays(
            np.array(nodes, int), np.array(edges, int), np.array(src), np.array(dst), fields
        )
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("level", "rows", "message"),
    [
        ("node", 2, "'x' has 2 rows per node"),
        ("graph", 0, "of 'x'=0: give"),
        ("graph", 1.0, "=1.0"),
    ],
)
def test_rows_that_no_saved_store_could_have_are_refused(level, rows, message):
    with pytest.raises(BadGraph, match=message):
        GraphStore.from_arrays([2], [0], NONE, NONE, {"x": (level, NONE)}, rows={"x": rows})


@pytest.mark.parametrize(
    ("level", "row", "where"),
    [("node", 3, "graph 2 has f[1]"), ("edge", 2, "graph 2 has f[0]"), ("graph", 5, "graph 2")],
)
def test_not_finite_is_found_where_asked(level, row, where):
    rows = {"node": 4, "edge": 4, "graph": 6}[level]
    values = np.zeros((rows, 2), np.float32)
    values[row, 1] = np.inf
    arguments = ([2, 0, 2], [2, 0, 2], np.array([0, 1, 0, 1]), np.array([0, 1, 0, 1]))
    options = {"rows": {"f": 2}} if level == "graph" else {}
    GraphStore.from_arrays(*map(np.array, arguments), {"f": (level, values)}, **options)
    for which in (True, ("f",)):
        with pytest.raises(BadGraph) as caught:
            GraphStore.from_arrays(
                *map(np.array, arguments), {"f": (level, values)}, check_finite=which, **options
            )
        assert where in str(caught.value)
        assert "[0.0, inf], which is not finite: fix or drop the graph" in str(caught.value)


def test_splits_must_name_graphs(esol):
    with pytest.raises(BadGraph, match="split 'val' of esol names graph 1128; there are 1128"):
        esol.with_splits(val=np.array([0, 1128]))
    with pytest.raises(BadGraph, match="names graph -1"):
        esol.with_splits(val=np.array([-1]))


# ---------------------------------------------------------------------- files


@pytest.fixture
def saved(esol, tmp_path) -> Path:
    esol.save(tmp_path / "store")
    return tmp_path / "store"


def test_load_gives_what_was_saved_without_copying(esol, saved):
    loaded = GraphStore.load(saved)
    assert loaded.schema == esol.schema
    assert loaded.name == "esol"
    assert set(loaded.arrays()) == set(esol.arrays())
    for name, array in loaded.arrays().items():
        np.testing.assert_array_equal(array, esol.arrays()[name])
        assert array.dtype == esol.arrays()[name].dtype
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
    assert not list(saved.parent.glob(".store-*")), "no scratch folder stays behind"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.replace('"version": 2', '"version": 99'), "version 99; this library"),
        (lambda text: text.replace("staticgraph.store", "other"), "says other version 2"),
    ],
)
def test_another_or_broken_manifest_is_refused(saved, edit, message):
    manifest = saved / "manifest.json"
    manifest.write_text(edit(manifest.read_text()))
    with pytest.raises(StoreCorrupt, match=message) as caught:
        GraphStore.load(saved)
    assert "build the store again" in str(caught.value)


def test_no_store_is_not_a_corrupt_one(tmp_path, saved):
    with pytest.raises(FileNotFoundError, match=r"is not a store: it has no manifest\.json"):
        GraphStore.load(tmp_path)
    shutil.rmtree(saved)
    with pytest.raises(FileNotFoundError):
        GraphStore.load(saved)


@pytest.mark.parametrize("values", [np.arange(12), np.arange(12.0), np.arange(12.0) + 0.5])
def test_columns_are_in_c_order(values):
    """Otherwise a transposed field would be copied whole for every batch: 5 of its 5.1 ms."""
    field = np.asfortranarray(values.reshape(4, 3))
    store = build([1] * 4, [0] * 4, NONE, NONE, x=("node", field))
    assert store.columns["x"].flags.c_contiguous
    assert np.array_equal(store.columns["x"], field)
