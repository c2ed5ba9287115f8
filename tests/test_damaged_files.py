"""Any changed byte of a store, a plan or a partitioned graph is an error or changes nothing, and is
found before anything in its block is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.written_stores import assert_same_files, clean_store

import staticgraph as sg
from staticgraph.errors import StoreCorrupt
from staticgraph.outofcore import PartitionedGraph, partition
from staticgraph.store import block_checks
from staticgraph.store.graph_store import GraphStore
from staticgraph.training.build_run import digest_of

POSITIONS = 600


def changes(files: list[Path], positions: int = POSITIONS) -> Iterator[tuple[Path, int]]:
    """Change one bit of every byte of some files, or of a dense sample, one byte at a time."""
    stride = max(1, sum(path.stat().st_size for path in files) // positions)
    for path in sorted(files):
        whole = path.read_bytes()
        for place in range(0, len(whole), stride):
            changed = whole[place] ^ 1 << (place // stride) % 8
            path.write_bytes(whole[:place] + bytes([changed]) + whole[place + 1 :])
            yield path, place
        path.write_bytes(whole)


def assert_same_store(found: GraphStore, store: GraphStore) -> None:
    assert found.name == store.name
    assert_same_files(found, store)


@pytest.mark.parametrize("lazily", [False, True])
def test_any_changed_byte_of_a_store(tmp_path, lazily):
    store = clean_store()
    store.save(tmp_path / "s")
    refused = 0
    for path, place in changes(list((tmp_path / "s").iterdir())):
        try:
            found = GraphStore.load(tmp_path / "s", verify=False if lazily else None)
            for graph in range(len(found)):
                found[graph]
        except StoreCorrupt:
            refused += 1
            continue
        assert_same_store(found, store)
        assert lazily or path.suffix == ".json", f"{path.name} changed at byte {place}, taken"
    assert refused > POSITIONS / 3, "headers of arrays alone may change in silence"
    assert_same_store(GraphStore.load(tmp_path / "s", verify=True), store)


def test_any_changed_byte_of_a_plan(tmp_path):
    path = tmp_path / "plan.json"
    plan = sg.plan_buckets(clean_store(), 2)
    plan.save(path)
    assert sg.BucketPlan.load(path) == plan
    messages = []
    for _ in changes([path]):
        try:
            assert sg.BucketPlan.load(path) == plan
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > POSITIONS / 2
    assert all(message.startswith(str(path)) for message in messages)


@pytest.mark.parametrize("relations", [0, 3])
def test_any_changed_byte_of_a_partitioned_graph(tmp_path, relations):
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 11, 40), rng.integers(0, 11, 40)]
    rows += [rng.integers(0, relations, 40)] if relations else []
    features = rng.normal(size=(11, 2)).astype(np.float32)

    def contents(graph: PartitionedGraph) -> list[np.ndarray]:
        into = np.zeros((3, graph.partition_size, 2), np.float32)
        for k in range(3):
            graph.read_features(k, into[k])
        edges = [graph.read_cells([(i, j)]) for i in range(3) for j in range(3)]
        return [np.array(graph.node_ids), into, *edges, graph.degrees("both")]

    graph = partition(np.stack(rows), 11, 3, tmp_path / "g", features=features)
    expected, manifest = contents(graph), graph.manifest
    refused = 0
    for path, place in changes(list((tmp_path / "g").iterdir())):
        try:
            found = PartitionedGraph(tmp_path / "g")
            read = contents(found)
        except StoreCorrupt:
            refused += 1
            continue
        assert path.suffix == ".json", f"{path.name} changed at byte {place} and was taken"
        assert found.manifest == manifest
        for one, other in zip(read, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert refused > POSITIONS / 2
    PartitionedGraph(tmp_path / "g", verify=True)


# ---------------------------------------------------------------------- a block at a time


@pytest.fixture
def mapped(tmp_path, esol, monkeypatch) -> Path:
    """ESOL in blocks of 4 KiB, with one byte of graph 600's features changed."""
    monkeypatch.setattr(block_checks, "BLOCK_BYTES", 4096)
    esol.save(tmp_path / "s")
    column = tmp_path / "s" / "column.x.npy"
    whole = bytearray(column.read_bytes())
    whole[len(whole) - esol.columns["x"].nbytes + 9 * int(esol.node_offsets[600])] ^= 1
    column.write_bytes(whole)
    return tmp_path / "s"


def test_a_block_is_compared_when_it_is_first_read(mapped, esol):
    store = GraphStore.load(mapped, verify=False)
    assert store[0].num_nodes == esol[0].num_nodes
    plan = sg.plan_buckets(esol, 4)
    for graph, damaged in ((5, False), (600, True), (1000, False)):
        batches = sg.StaticLoader(store, plan, indices=np.array([graph]))
        if damaged:
            with pytest.raises(StoreCorrupt, match=r"column\.x is not what was written in the ro"):
                list(batches)
            with pytest.raises(StoreCorrupt, match=r"column\.x.*of graphs \d+ to \d+"):
                store[graph]
        else:
            assert len(list(batches)) == 1
    store.column("y")
    for everything in (
        store.verify,
        lambda: store.cardinality("x"),
        lambda: store.column("x"),
        lambda: store.to("cpu"),
        lambda: store.save(mapped.parent / "copy"),
        lambda: digest_of(store),
    ):
        with pytest.raises(StoreCorrupt, match=r"column\.x is not what was written"):
            everything()
    assert not (mapped.parent / "copy").exists(), "damage is not given new checksums"
    with pytest.raises(StoreCorrupt, match=r"column\.x\.npy is not what was written"):
        GraphStore.load(mapped)


def test_a_digest_knows_labels_and_not_places(tmp_path, esol):
    esol.save(tmp_path / "s")
    assert digest_of(GraphStore.load(tmp_path / "s")) == digest_of(esol)
    store = clean_store()
    before = digest_of(store)
    store.columns["y"][2] += 1
    assert digest_of(store) != before
    assert digest_of(clean_store().with_splits(train=np.array([0]))) != before
