"""Stores in several folders: the same store however it is divided, and damage is named."""

from __future__ import annotations

import copy
import os
import pickle
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.alike import same
from support.drawn import examples
from support.faults import killed_before
from support.graphs import assert_same_graph, graph_lists
from support.written_stores import LEVELS, assert_same_files, graphs_of
from torch_geometric.data import Data, HeteroData

import staticgraph as sg
from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.store.block_checks import Checks
from staticgraph.store.joined_parts import slices
from staticgraph.store.writer import StoreWriter, parts_folder


def in_shards(folder: Path, graphs: list[Data], lengths: list[int], **options) -> None:
    """Writes one store per length into sibling folders, as parts of a writer."""
    writer = StoreWriter(folder, part_graphs=len(graphs) + 1, levels=LEVELS, name="all", **options)
    begin = 0
    for length in lengths:
        writer.extend(graphs[begin : begin + length])
        writer.commit()
        begin += length


def assert_same_batches(ours, theirs) -> None:
    """Every array of every batch is equal, and so are the graphs it holds."""
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.bucket, mine.real) == (other.bucket, other.real)
        assert same(dict(mine._tensors), dict(other._tensors))


@examples(10)
@given(graphs=graph_lists(min_size=1, max_size=9), data=st.data(), keep_order=st.booleans())
def test_any_division_is_the_same_store(graphs, data, keep_order, tmp_path_factory):
    """Graphs, arrays, sizes, schedule and batches; sorted or not, in whatever dtypes shards use."""
    cuts = data.draw(st.lists(st.integers(0, len(graphs)), max_size=4))
    lengths = [k for k in np.diff(sorted({0, len(graphs), *cuts})).tolist() if k]
    folder = tmp_path_factory.mktemp("s") / "all"
    in_shards(folder, graphs, lengths, keep_order=keep_order)
    whole = sg.GraphStore.from_pyg(graphs, levels=LEVELS, name="all", keep_order=keep_order)
    found = sg.GraphStore.load(folder.with_name("all.parts"))
    listed = StoreWriter(folder).finish(merged=False)
    several = sg.GraphStore.load(listed.shards.folders)
    plan = sg.plan_buckets(whole, 2)
    for store in (listed, several):
        assert isinstance(store, sg.GraphStore)
        assert_same_files(store, whole)
        assert np.array_equal(store.sizes, whole.sizes)
        assert store.histogram.digest == whole.histogram.digest
        assert sg.plan_buckets(store, 2) == plan
        for number, graph in enumerate(graphs):
            assert_same_graph(store[number], graph)
        for each, graph in zip(store[::-1], reversed(graphs), strict=True):
            assert_same_graph(each, graph)
        loaders = [
            sg.StaticLoader(each, plan, shuffle=True, seed=3, pointers=not keep_order)
            for each in (whole, store)
        ]
        assert_same_batches(*loaders)
    assert len(found) == len(whole)  # opened before its folder was moved


def test_splits_that_all_stores_have_are_put_together(tmp_path):
    """As positions in the whole; a split that only some stores have would silently be partial."""
    graphs = graphs_of(16)
    first, second = graphs[:10], graphs[10:]
    sg.GraphStore.from_pyg(first).with_splits(train=range(8), val=[9, 8], test=[0]).save(
        tmp_path / "a"
    )
    sg.GraphStore.from_pyg(second).with_splits(train=[5, 1], val=[0]).save(tmp_path / "b")
    store = sg.GraphStore.load([tmp_path / "a", tmp_path / "b"])
    assert {name: list(ids) for name, ids in store.splits.items()} == {
        "train": [*range(8), 15, 11],
        "val": [9, 8, 10],
    }
    assert sg.GraphStore.load([tmp_path / "b"]).splits["train"].tolist() == [5, 1]


def test_nodes_of_several_types_and_objects(tmp_path):
    rng = np.random.default_rng(1)
    graphs = []
    for number, sort in enumerate((True, False, True, True, False)):
        data = HeteroData(smiles=f"C{number}")
        data["a"].x = torch.from_numpy(rng.normal(size=(4, 2)))
        data["b"].x = torch.from_numpy(rng.normal(size=(3, 1)))
        to = torch.tensor([0, 1, 2, 2] if sort else [2, 0, 1, 0])
        data["a", "to", "b"].edge_index = torch.stack([torch.arange(4), to])
        graphs.append(data)
    whole = sg.GraphStore.from_pyg(graphs, name="s")
    with StoreWriter(tmp_path / "s", part_graphs=2, shard=0) as writer:
        writer.extend(graphs)
    found = StoreWriter(tmp_path / "s").finish(merged=False)
    assert_same_files(found, whole)
    found.save(tmp_path / "joined")
    assert_same_files(sg.GraphStore.load(tmp_path / "joined"), whole)
    assert [found[k].smiles for k in range(5)] == [f"C{k}" for k in range(5)]
    assert found.objects_of(np.array([4, 0]))["smiles"] == ["C4", "C0"]
    for mapping in (found.objects_of(np.array([4])), found.columns):
        with pytest.raises(KeyError, match=r"^'name'$"):
            mapping["name"]
    ranges = ((0, 5), (1, 4), (2, 4), (3, 3))
    runs = [[len(part) for part in slices(found, 3, *each)] for each in ranges]
    assert runs == [[2, 2, 1], [1, 2], [2], []], "each ends where its shard does"
    plan = sg.plan_buckets(whole, 2)
    assert_same_batches(
        *(sg.StaticLoader(store, plan, shuffle=True, seed=1) for store in (whole, found))
    )


@pytest.fixture
def listed(tmp_path) -> Path:
    """Thirty graphs in three shards, with a list of the shards."""
    in_shards(tmp_path / "all", graphs_of(30), [10, 12, 8])
    StoreWriter(tmp_path / "all").finish(merged=False, splits={"train": np.arange(25)})
    return tmp_path / "all"


def test_copies_and_other_processes_open_the_shards_with_their_own_splits(listed):
    store = sg.GraphStore.load(listed, shards="by-rank")
    other = store.with_splits(val=[3, 20])
    assert "val" not in store.splits
    for again in (other, copy.copy(other), pickle.loads(pickle.dumps(other))):
        assert (again.by_rank, again.name, list(again.splits["val"])) == (True, "all", [3, 20])
        for number, graph in enumerate(graphs_of(30)):
            assert_same_graph(again[number], graph)
    assert not hasattr(copy.copy(store), "no such attribute")


def test_a_flipped_byte_anywhere_is_found_and_named(listed):
    """In whichever file it is, the first read of that file finds it."""
    for path in sorted(listed.rglob("*")):
        if not path.is_file():
            continue
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        before = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(StoreCorrupt) as caught:
            sg.GraphStore.load(listed, verify=True)
        inside = path.parent != listed
        assert (path.parent.name if inside else listed.name) in str(caught.value)
        if inside:
            number = sorted(p.name for p in listed.iterdir() if p.is_dir()).index(path.parent.name)
            assert f"shard {number} of the 3 of all" in str(caught.value), path
            assert "copy it again" in str(caught.value)
        path.write_bytes(before)
    sg.GraphStore.load(listed, verify=True)


def test_a_shard_cut_short_is_refused_when_the_store_is_opened(listed):
    """Without reading a column."""
    path = sorted(listed.glob("*-*/edge_src.npy"))[2]
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StoreCorrupt, match=r"shard 2 of the 3 .*edge_src.npy has .*copy it again"):
        sg.GraphStore.load(listed, verify=False)
    shutil.rmtree(path.parent)
    with pytest.raises(StoreCorrupt, match=r"shard 2 .*is not here"):
        sg.GraphStore.load(listed, verify=False)


def test_another_store_in_a_shards_place_is_refused(listed, tmp_path):
    first, second = sorted(path for path in listed.iterdir() if path.is_dir())[:2]
    shutil.rmtree(first)
    shutil.copytree(second, first)
    with pytest.raises(
        StoreCorrupt, match=r"shard 0 .*(not the store that was listed|has .* bytes)"
    ):
        sg.GraphStore.load(listed, verify=True)


def test_opening_reads_no_column(listed, monkeypatch):
    monkeypatch.setattr(Checks, "touch", lambda self, ids=None: 1 / 0)
    store = sg.GraphStore.load(listed, verify=False)
    assert len(store) == 30
    assert store.splits["train"].tolist() == list(range(25))
    sg.plan_buckets(store, 4)


def test_more_shards_than_files_may_be_open(listed, monkeypatch):
    """The least recently used shards are closed."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    in_shards(listed.with_name("many"), graphs_of(30), [3] * 10)
    store = sg.GraphStore.load(listed.with_name("many.parts"), verify=False)
    assert store._open.cache_info().maxsize == 4
    whole = sg.GraphStore.from_pyg(graphs_of(30), levels=LEVELS, name="many")
    plan = sg.plan_buckets(whole, 4)
    for _ in range(2):
        assert_same_batches(
            *(sg.StaticLoader(each, plan, shuffle=True, num_workers=w)
              for each, w in ((whole, 0), (store, 2)))
        )  # fmt: skip
    assert store._open.cache_info().currsize <= 4


def test_a_kill_while_the_list_is_written_leaves_parts_or_the_store(tmp_path):
    graphs = graphs_of(5)
    k, killed, seen = 0, True, set()
    while killed:
        folder = tmp_path / f"{k}" / "all"
        in_shards(folder, graphs, [2, 3])
        killed = killed_before(k, lambda: StoreWriter(folder).finish(merged=False))  # noqa: B023
        k += 3
        seen.add(folder.exists())
        if not folder.exists():
            assert len(sg.GraphStore.load(parts_folder(folder))) == 5
            StoreWriter(folder).finish(merged=False)
        assert_same_files(
            sg.GraphStore.load(folder), sg.GraphStore.from_pyg(graphs, levels=LEVELS, name="all")
        )
    assert seen == {False, True}


def test_what_was_committed_is_named_where_there_is_no_store(tmp_path):
    in_shards(tmp_path / "all", graphs_of(3), [3])
    with pytest.raises(FileNotFoundError, match=r"all.parts has what was committed"):
        sg.GraphStore.load(tmp_path / "all")
    with pytest.raises(ValueError, match="needs one finished store"):
        sg.GraphStore.load(tmp_path / "all.parts", shards="by-rank")
    with pytest.raises(BadGraph, match="no shard was given"):
        sg.GraphStore.load([])


@pytest.mark.parametrize("whole", [True, False])
def test_by_rank_each_reads_a_range_and_all_take_the_same_steps(whole, listed):
    """The ranges are those of one store, in however many folders it is."""
    if whole:
        sg.GraphStore.load(listed).save(listed.with_name("whole"))
    store = sg.GraphStore.load(listed.with_name("whole") if whole else listed, shards="by-rank")
    plan = sg.plan_buckets(store, 4)
    steps = []
    for rank in range(3):
        loader = sg.StaticLoader(store, plan, shuffle=True, rank=rank, world_size=3)
        batches = loader.batcher.epoch(0)
        assert sorted(np.concatenate([b.ids for b in batches])) == [
            *range(10 * rank, 10 * rank + 10)
        ]
        steps.append([batch.bucket for batch in batches])
    assert steps[0] == steps[1] == steps[2]
    with pytest.raises(BadGraph, match="30 graphs for 31 ranks"):
        store.bounds_of_ranks(31)
    with pytest.raises(ValueError, match="choose 'by-rank'"):
        sg.GraphStore.load(listed, shards="all")


@pytest.mark.parametrize("graph", [-1, 30])
def test_a_graph_that_is_not_there_is_refused(listed, graph):
    store = sg.GraphStore.load(listed, verify=False)
    for ask in (store.held, store.verify):
        with pytest.raises(IndexError, match=f"graph {graph} of 30"):
            ask(np.array([3, graph]))
