"""Stores and partitioned graphs with valid checksums and invalid contents: refused, naming the
array and the graph, before a loop without bounds checks runs over them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.written_stores import clean_store
from torch_geometric.data import HeteroData

import staticgraph as sg
from staticgraph.errors import StoreCorrupt
from staticgraph.files import document
from staticgraph.files.checksum import crc32_of_file
from staticgraph.outofcore import PartitionedGraph, partition
from staticgraph.outofcore.disk.manifest import FileRecord
from staticgraph.store import block_checks
from staticgraph.store.graph_store import GraphStore


def forge(folder: Path, name: str, array: np.ndarray) -> None:
    """Replaces an array of a saved store and updates every checksum."""
    path = folder / f"{name}.npy"
    manifest = document.load(folder / "manifest.json")
    arrays = {each: np.load(folder / f"{each}.npy") for each in manifest["files"]}
    np.save(path, array)
    arrays[name] = array
    schema = sg.schema.Schema.from_dict(manifest["schema"])
    blocks, known = arrays.pop("checks.blocks"), arrays.pop("checks.crc32")
    try:
        sums = block_checks.sums_of(schema, arrays, blocks)
    except (IndexError, KeyError):  # the array cannot be read anyway
        sums = known
    np.save(folder / "checks.crc32.npy", sums)
    manifest["files"].setdefault(name, {})
    for each, said in ((name, array), ("checks.crc32", sums)):
        file = folder / f"{each}.npy"
        manifest["files"][each] = {
            "bytes": file.stat().st_size,
            "crc32": crc32_of_file(file),
            "dtype": said.dtype.str,
            "shape": list(said.shape),
        }
    document.save(folder / "manifest.json", manifest)


def touch(store: GraphStore) -> None:
    """Reads and batches all graphs, through every loop that trusts the arrays."""
    for graph in range(len(store)):
        store[graph]
    plan = sg.plan_buckets(store, 2)
    for _ in sg.StaticLoader(store, plan, pointers=True):
        pass


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A saved store with one block per graph."""
    monkeypatch.setattr(block_checks, "BLOCK_BYTES", 1)
    clean_store().save(tmp_path / "s")
    return tmp_path / "s"


BIG = np.iinfo(np.int64).max


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("node_offsets", {1: 7}, "node_offsets goes from 7 to 5 in graph 1"),
        ("node_offsets", {3: 10**6}, "column.x|row_ptr"),
        ("edge_offsets", {3: 10**6}, r"edge_src has shape \(10,\)"),
        ("edge_offsets", {0: 1}, "edge_offsets goes from 1 to 3 in graph 0"),
        ("edge_offsets", {1: BIG}, "edge_offsets goes from 9223372036854775807 to 5 in graph 1"),
        ("node_offsets", {0: -4}, "node_offsets goes from -4 to 3 in graph 0"),
        ("edge_src", {4: 2}, "edge_src has 2 in graph 1, no node of it"),
        ("edge_src", {9: 200}, "edge_src has 200 in graph 2, no node of it"),
        ("edge_dst", {9: 4}, "edge_dst has 4 in graph 2, no node of it"),
        ("edge_dst", {0: 2}, "edge_dst has .* in graph 0, destinations must ascend"),
        ("row_ptr", {4: 9}, r"row_ptr\[4\] is 9 in graph 1, where its edges say"),
        ("row_ptr", {0: -9}, r"row_ptr\[0\] is -9 in graph 0"),
        ("row_ptr", {9: 99}, r"row_ptr\[9\] is 99 in graph 2"),
        ("transpose", {7: 250}, "transpose has 250 in graph 2, no place in it"),
        ("transpose", {3: 1, 4: 1}, "transpose has 1 in graph 1, there twice"),
        ("transpose", "reversed", "transpose has .*sources must ascend"),
        ("edge_origin", {7: 99}, "edge_origin has 99 in graph 2, no place in it"),
        ("edge_origin", {3: 0, 4: 0}, "edge_origin has 0 in graph 1, there twice"),
        ("column.next", {4: 2}, "column.next has 2 in graph 1, which counts 'node', of which it"),
        ("split.train", {0: 3}, "split.train names graph 3; there are 3"),
    ],
)
def test_what_loops_trust_is_checked(folder, name, change, message, lazily):
    array = np.load(folder / f"{name}.npy")
    if change == "reversed":
        array = array[[2, 1, 0, *range(3, 10)]]
    else:
        for place, value in change.items():
            wide = np.int64 if np.issubdtype(array.dtype, np.integer) else array.dtype
            array = array.astype(wide)
            array[place] = value
    forge(folder, name, array)
    with pytest.raises(StoreCorrupt, match=message):
        touch(GraphStore.load(folder, verify=not lazily))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("edge_src", np.zeros(10, np.float32), "edge_src has shape .* and dtype float32; whole"),
        ("edge_dst", np.zeros((10, 1), np.uint8), r"edge_dst has shape \(10, 1\)"),
        ("node_offsets", np.zeros(4, np.int32), "node_offsets has shape .* int32; int64 of shape"),
        ("node_offsets", np.zeros(9, np.int64), r"int64 of shape \(4,\) is expected"),
        ("column.x", np.zeros((9, 2), np.float32), r"column.x has shape \(9, 2\)"),
        ("column.x", np.zeros((8, 1), np.float32), r"column.x has shape \(8, 1\)"),
        ("column.next", np.zeros(9, np.float32), "column.next has shape .* float32"),
        ("column.x", np.zeros((9, 1), np.complex64), "column.x.npy cannot hold complex64"),
        ("column.x", np.zeros((9, 1), ">f4"), "cannot hold >f4"),
        ("checks.blocks", np.array([0, 2, 9]), "checks.blocks and checks.crc32 do not fit"),
        ("column.more", np.zeros(9, np.int64), "the schema knows no array column.more"),
        ("split.train", np.zeros((1, 1), np.int64), r"split.train has shape \(1, 1\)"),
    ],
)
def test_arrays_of_another_form_are_refused(folder, name, array, message):
    if name == "checks.blocks":
        np.save(folder / "checks.blocks.npy", array)
        manifest = document.load(folder / "manifest.json")
        path = folder / "checks.blocks.npy"
        manifest["files"][name] |= {
            "bytes": path.stat().st_size, "crc32": crc32_of_file(path), "shape": [3],
        }  # fmt: skip
        document.save(folder / "manifest.json", manifest)
    else:
        forge(folder, name, array)
    with pytest.raises(StoreCorrupt, match=message):
        GraphStore.load(folder, verify=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["files"].pop("transpose"), "not a complete manifest: it lacks 'transpose'"),
        (lambda m: m["files"].pop("column.x"), "not a complete manifest: it lacks 'column.x'"),
        (lambda m: m.pop("schema"), "not a complete manifest: it lacks 'schema'"),
        (lambda m: m.pop("files"), "not a complete manifest: it lacks 'files'"),
        (lambda m: m.update(files=[]), "not a complete manifest: it lacks 'node_offsets, "),
        (lambda m: m["files"]["edge_src"].update(shape=[2**62, 8]), "cannot hold"),
        (lambda m: m["files"]["edge_src"].update(shape=[-1]), "cannot hold"),
        (lambda m: m["files"]["edge_src"].update(dtype="O"), "cannot hold"),
        (
            lambda m: m["schema"]["fields"][0].update(dtype="nothing"),
            "has missing or unknown entries",
        ),
        (lambda m: m["schema"]["fields"][0].update(level="nothing"), "field 'x' cannot be"),
        (lambda m: m["schema"]["fields"][0].update(rows=-1), "field 'x' cannot be"),
        (lambda m: m["schema"]["fields"][0].update(cat_dim=7), "field 'x' cannot be"),
        (lambda m: m["schema"]["fields"][0].update(cat_dim=None), "field 'x' cannot be"),
        (lambda m: m["schema"]["fields"][1].update(counts=["heaven"]), "counts .*not a level"),
        (lambda m: m.update(graphs=10**9), "is expected"),
    ],
)
def test_manifests_that_were_sealed_again_are_refused(folder, change, message):
    manifest = document.load(folder / "manifest.json")
    change(manifest)
    document.save(folder / "manifest.json", manifest)
    with pytest.raises(StoreCorrupt, match=message):
        GraphStore.load(folder, verify=False)


@examples(40)
@given(
    name=st.sampled_from(["edge_src", "edge_dst", "row_ptr", "transpose", "edge_origin"]),
    places=st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 12)), min_size=1, max_size=3),
    lazily=st.booleans(),
)
def test_wild_values_are_refused_or_harmless(tmp_path_factory, name, places, lazily):
    """A store that passes the checks runs through every loop without leaving its arrays."""
    store = clean_store()
    array = getattr(store, name).astype(np.int64)
    for place, value in places:
        array[place % len(array)] = value
    path = tmp_path_factory.mktemp("s") / "s"
    replace(store, **{name: array}).save(path)
    try:
        touch(GraphStore.load(path, verify=not lazily))
    except StoreCorrupt:
        return
    again = GraphStore.load(path)
    for graph in range(len(again)):
        edges = again[graph].edge_index
        assert edges.numel() == 0 or int(edges.max()) < again[graph].num_nodes


def test_types_and_their_indices_are_checked(tmp_path):
    graphs = []
    for n in (3, 2):
        data = HeteroData()
        data["a"].x, data["b"].x = torch.full((n, 1), 0.5), torch.full((n + 1, 1), 0.5)
        data["a", "to", "b"].edge_index = torch.stack([torch.arange(n), torch.arange(n) + 1])
        graphs.append(data)
    store = GraphStore.from_pyg(graphs)
    store.save(tmp_path / "s")
    name = "column.a__to__b.edge_index"
    column = np.load(tmp_path / "s" / f"{name}.npy")
    for place, message in (((1, 0), "in graph 0, which counts 'a'"), ((4, 1), "in graph 1")):
        wild = column.copy()
        wild[place] = 9
        forge(tmp_path / "s", name, wild)
        with pytest.raises(StoreCorrupt, match=message):
            GraphStore.load(tmp_path / "s")
    forge(tmp_path / "s", name, column)
    assert len(GraphStore.load(tmp_path / "s")) == 2
    sealed = document.load(tmp_path / "s" / "manifest.json")
    for axis, changes in (
        (0, {"type": ""}),
        (0, {"type": ["a", "b"]}),
        (0, {"type": ["b"]}),
        (0, {"kind": "nodes"}),
        (2, {"type": []}),
        (2, {"type": ["a", "to", "c"]}),
        (2, {"type": ["a", 3, "b"]}),
        (2, {"kind": "rows"}),
    ):
        manifest = copy.deepcopy(sealed)
        manifest["schema"]["axes"][axis] |= changes
        document.save(tmp_path / "s" / "manifest.json", manifest)
        with pytest.raises(StoreCorrupt, match=r"cannot be of type|is there twice|has missing or"):
            GraphStore.load(tmp_path / "s")


def test_stores_of_version_1_are_read_and_compared(tmp_path):
    store = clean_store()
    store.save(tmp_path / "s")
    manifest = document.load(tmp_path / "s" / "manifest.json")
    for name in ("checks.blocks", "checks.crc32"):
        (tmp_path / "s" / f"{name}.npy").unlink()
        del manifest["files"][name]
    for file in manifest["files"].values():
        del file["dtype"], file["shape"]
    manifest["version"] = 1
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
    for verify in (None, False, True):
        found = GraphStore.load(tmp_path / "s", verify=verify)
        np.testing.assert_array_equal(found.transpose, store.transpose)
    wild = np.load(tmp_path / "s" / "transpose.npy")
    wild[3] = 77
    np.save(tmp_path / "s" / "transpose.npy", wild)
    with pytest.raises(StoreCorrupt, match="checksum differs"):
        GraphStore.load(tmp_path / "s", verify=False)
    manifest["files"]["transpose"]["crc32"] = crc32_of_file(tmp_path / "s" / "transpose.npy")
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreCorrupt, match="transpose has 77 in graph 1, no place in it"):
        GraphStore.load(tmp_path / "s", verify=False)


# ---------------------------------------------------------------------- partitioned graphs


@pytest.fixture
def graph(tmp_path) -> Path:
    rng = np.random.default_rng(2)
    edges = np.stack([rng.integers(0, 10, 60), rng.integers(0, 10, 60), rng.integers(0, 3, 60)])
    partition(edges, 10, 2, tmp_path / "g", features=np.ones((10, 2), np.float32))
    return tmp_path / "g"


def reseal(folder: Path) -> None:
    """Updates every checksum of a partitioned graph to its current contents."""
    manifest = document.load(folder / "manifest.json")
    offsets, row = np.load(folder / "offsets.npy"), 12
    sums = FileRecord.of(folder / "edges.bin", (offsets[:-1] * row).tolist()).crc32
    np.save(folder / "checksums.npy", np.array(sums, np.uint32))
    for name, said in manifest["files"].items():
        found = FileRecord.of(folder / name, said["blocks"])
        manifest["files"][name] = {
            "bytes": found.bytes, "blocks": found.blocks, "crc32": found.crc32,
        }  # fmt: skip
    document.save(folder / "manifest.json", manifest)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, 7, r"cell \(0, 0\) at byte 0: node 7 is not of partition 0, 0 to 4"),
        (0, -1, "node -1 is not of partition 0"),
        (2, 2**30, "node 1073741824 is not of partition 0"),
        (1, 3, "relations go from 0 to 3, but there are 3"),
        (1, -2, "relations go from -2 to 2"),
    ],
)
def test_edges_outside_their_partitions_are_refused(graph, column, value, message):
    edges = np.fromfile(graph / "edges.bin", np.int32).reshape(-1, 3)
    edges[0, column] = value
    edges.tofile(graph / "edges.bin")
    reseal(graph)
    opened = PartitionedGraph(graph)
    assert len(opened.read_cells([(1, 1)]))
    with pytest.raises(StoreCorrupt, match=message):
        opened.read_cells([(0, 0)])
    with pytest.raises(StoreCorrupt, match=message):
        opened.degrees()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("offsets.npy", lambda a: a.__setitem__(1, 10**9), "offsets ascend from 0 to 60"),
        ("offsets.npy", lambda a: a.__setitem__(0, 4), "goes from 4 to 60"),
        ("node_ids.npy", lambda a: a.__setitem__(0, 10**9), "every number below 10 once"),
        ("node_ids.npy", lambda a: a.__setitem__(0, a[1]), "every number below 10 once"),
    ],
)
def test_wild_offsets_and_numbers_are_refused(graph, name, change, message):
    array = np.load(graph / name)
    change(array)
    np.save(graph / name, array)
    manifest = document.load(graph / "manifest.json")
    manifest["files"][name]["crc32"] = [crc32_of_file(graph / name)]
    document.save(graph / "manifest.json", manifest)
    with pytest.raises(StoreCorrupt, match=message):
        PartitionedGraph(graph).node_ids.sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(num_nodes=9), "features.bin has|has missing or unknown entries"),
        (lambda m: m.update(num_nodes=10**12), "has missing or unknown entries"),
        (lambda m: m.update(partition_size=1), "are not in 2 partitions of 1"),
        (lambda m: m.update(num_partitions="2"), "not a whole number"),
        (lambda m: m.update(num_edges=61), "edges.bin has 720 bytes"),
        (lambda m: m.update(columns=2), "2 columns of edges with 3 relations"),
        (lambda m: m.update(index_dtype="float32"), "node numbers are float32"),
        (lambda m: m.update(features=["float32", 10**9]), "features.bin has 80 bytes"),
        (lambda m: m.update(features=["object", 1]), "features are"),
        (lambda m: m.update(training_partitions=[2]), "training partitions are"),
        (lambda m: m["files"].pop("edges.bin"), "the files are"),
        (lambda m: m["files"].update({"../../etc/passwd": m["files"]["edges.bin"]}), "the files a"),
        (lambda m: m["files"]["edges.bin"].update(blocks=[0, 10**9]), "in blocks"),
        (lambda m: m.update(more=1), "unexpected keyword"),
    ],
)
def test_manifests_of_graphs_that_contradict_themselves_are_refused(graph, change, message):
    manifest = document.load(graph / "manifest.json")
    change(manifest)
    document.save(graph / "manifest.json", manifest)
    with pytest.raises(StoreCorrupt, match=message):
        PartitionedGraph(graph)
