"""Stores written in parts: the same bytes as when written at once, and committed parts are kept."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.faults import killed_before
from support.graphs import assert_same_graph, graph_lists
from support.written_stores import LEVELS, assert_same_files, graphs_of
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.store.sharded import parts_in
from staticgraph.store.writer import StoreWriter, parts_folder


@examples(12)
@given(graphs=graph_lists(min_size=1, max_size=9), part=st.integers(1, 4), keep=st.booleans())
def test_in_parts_is_at_once(graphs, part, keep, tmp_path_factory):
    """Whatever dtype each part alone would use, sorted or not."""
    folder = tmp_path_factory.mktemp("w") / "store"
    options = {"levels": LEVELS, "name": "all", "keep_order": keep}
    with StoreWriter(folder, part_graphs=part, **options) as writer:
        writer.extend(graphs)
    found = sg.GraphStore.load(folder)
    found.verify()
    assert_same_files(found, sg.GraphStore.from_pyg(graphs, **options))
    for number, graph in enumerate(graphs):
        assert_same_graph(found[number], graph)
    assert not parts_in(parts_folder(folder))


def test_a_writer_that_continues_keeps_edges_in_the_order_of_the_parts_before(tmp_path):
    graphs, options = graphs_of(6), {"levels": LEVELS, "name": "s", "keep_order": True}
    first = StoreWriter(tmp_path / "s", **options)
    first.extend(graphs[:3])
    first.commit()
    with StoreWriter(tmp_path / "s", levels=LEVELS) as writer:
        writer.extend(graphs[3:])
    expected = sg.GraphStore.from_pyg(graphs, **options)
    assert_same_files(sg.GraphStore.load(tmp_path / "s"), expected)


OF_NODES = {"k": "node"}


def _with(values: list[int]) -> list[Data]:
    return [
        Data(edge_index=torch.tensor([[0], [0]]), k=torch.tensor([value]), num_nodes=1)
        for value in values
    ]


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([3, 300], np.int16), ([300, 40_000], np.uint16), ([-1, 40_000], np.int32),
        ([-1, 2, 40_000, 300], np.int32), ([255, 70_000], np.int32), ([1, 2**40], np.int64),
    ],
)  # fmt: skip
def test_parts_of_several_widths_are_kept_in_the_narrowest(values, kept, tmp_path):
    graphs = _with(values)
    with StoreWriter(tmp_path / "s", part_graphs=1, levels=OF_NODES) as writer:
        writer.extend(graphs)
    found = sg.GraphStore.load(tmp_path / "s")
    assert found.columns["k"].dtype == kept
    assert_same_files(found, sg.GraphStore.from_pyg(graphs, levels=OF_NODES, name="s"))


@pytest.mark.parametrize("merged", [True, False])
def test_numbers_beyond_int64_are_not_rounded(merged, tmp_path):
    values = [2**63 + 1, 2**53 + 1, 300, -1 % 2**64]
    writer = StoreWriter(tmp_path / "s", part_graphs=1)
    for value in values:
        graph = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
        graph.key = torch.tensor([value], dtype=torch.uint64)
        writer.append(graph)
    store = writer.finish(merged=merged)
    assert [graph.key.tolist()[0] for graph in store] == values
    assert sg.StaticBatch.of(store, range(4), (20, 30, 6)).key[:4].tolist() == values


@pytest.mark.parametrize("merged", [True, False])
def test_a_shard_that_is_missing_or_ended_early_is_named(merged, tmp_path):
    """In its place the graphs of the next shard would stand, 40 of 60 without a word."""
    graphs = _with(list(range(6)))
    folder = tmp_path / "s"
    for shard in (2, 0):
        with StoreWriter(folder, shard=shard, part_graphs=1, levels=OF_NODES) as writer:
            writer.extend(graphs[shard * 2 : shard * 2 + 2])
    with pytest.raises(BadGraph, match=r"2 shards, of 3: shard 1 is missing.* shard=1"):
        StoreWriter(folder).finish(merged=merged)
    with pytest.raises(BadGraph, match="shard 1 is missing"):
        sg.GraphStore.load(tmp_path / "s.parts")
    assert len(sg.GraphStore.load(sorted((tmp_path / "s.parts").glob("*-*")))) == 4
    StoreWriter(folder, shard=1, part_graphs=1, levels=OF_NODES).append(graphs[2])  # and is killed
    with pytest.raises(BadGraph, match="the writer of shard 1 did not reach its end"):
        StoreWriter(folder).finish(merged=merged)
    with StoreWriter(folder, shard=1, levels=OF_NODES) as writer:
        writer.extend(graphs[2 + writer.committed : 4])
    with pytest.raises(BadGraph, match="3 shards, of 4: shard 3 is missing"):
        StoreWriter(folder).finish(merged=merged, shards=4)
    assert not folder.exists()
    found = StoreWriter(folder).finish(merged=merged, shards=3, splits={"train": np.arange(5)})
    expected = sg.GraphStore.from_pyg(graphs, levels=OF_NODES, name="s")
    assert_same_files(found, expected.with_splits(train=range(5)))


@pytest.mark.parametrize("merged", [True, False])
def test_a_shard_that_ended_without_graphs_is_not_missing(merged, tmp_path):
    graphs, folder = _with(list(range(3))), tmp_path / "s"
    for shard, share in ((0, graphs[:2]), (1, []), (2, graphs[2:]), (3, [])):
        with StoreWriter(folder, shard=shard, levels=OF_NODES) as writer:
            writer.extend(share)
    assert len(sg.GraphStore.load(tmp_path / "s.parts")) == 3
    with StoreWriter(folder, shard=1, levels=OF_NODES) as writer:  # begun again, and ended again
        found = writer.finish(merged=merged, shards=4)
    assert_same_files(found, sg.GraphStore.from_pyg(graphs, levels=OF_NODES, name="s"))
    assert [*tmp_path.rglob("*.empty")] == []
    assert not (tmp_path / "s.parts").exists()


def test_what_a_writer_leaves_out_or_refuses_it_does_of_a_store_too(tmp_path):
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    graphs = [
        Data(x=torch.rand(3, 2), y=torch.rand(1), a=torch.rand(3), edge_index=ring)
        for _ in range(2)
    ]
    store = sg.GraphStore.from_pyg(graphs, levels={"a": "edge"})
    writer = StoreWriter(tmp_path / "s", exclude="y")
    writer.extend(store)
    assert {field.name: field.level for field in writer.finish().schema} == {
        "x": "node",
        "a": "edge",
    }
    graphs[1].x[0, 1] = torch.nan
    writer = StoreWriter(tmp_path / "t", check_finite=True)
    writer.extend(sg.GraphStore.from_pyg(graphs, levels={"a": "edge"}))
    with pytest.raises(BadGraph, match=r"graph 1 has x\[0\] = .*nan"):
        writer.finish()


def test_the_current_folder_has_a_name(tmp_path, monkeypatch):
    (tmp_path / "s").mkdir()
    monkeypatch.chdir(tmp_path / "s")
    with pytest.raises(FileNotFoundError, match=r"\. is not a store: it has no manifest\.json"):
        sg.GraphStore.load(".")
    writer = StoreWriter(".", levels=OF_NODES)
    writer.extend(_with([1, 2]))
    assert writer.finish(merged=False).name == "s"
    assert len(sg.GraphStore.load(tmp_path / "s")) == 2


@pytest.mark.parametrize("merged", [True, False])
def test_any_changed_byte_of_a_part_is_refused_when_the_store_is_finished(merged, tmp_path):
    """Also in a file's header, which a mapped array does not read."""
    with StoreWriter(tmp_path / "s", shard=0, levels=OF_NODES) as writer:
        writer.extend(_with([1, 2, 3]))
    (part,) = parts_in(parts_folder(tmp_path / "s")).values()
    random = np.random.default_rng(0)
    for path in sorted(part.iterdir()):
        before = path.read_bytes()
        for place in random.choice(len(before), 2):
            changed = bytearray(before)
            changed[place] ^= 1 << int(random.integers(8))
            path.write_bytes(changed)
            with pytest.raises(StoreCorrupt, match="00000-0000000"):
                StoreWriter(tmp_path / "s").finish(merged=merged)
            assert parts_in(parts_folder(tmp_path / "s")) == {(0, 0): part}, "it stays"
        path.write_bytes(before)
    assert len(StoreWriter(tmp_path / "s").finish(merged=merged)) == 3


def test_stores_and_arrays_are_appended(tmp_path, esol):
    few = sg.GraphStore.from_pyg(esol[:40], name="few")
    with StoreWriter(tmp_path / "s", part_graphs=25) as writer:
        writer.extend(sg.GraphStore.from_pyg(few[:20], name="a"))
        writer.extend(few[20:40])
    assert_same_files(sg.GraphStore.load(tmp_path / "s"), few)
    with StoreWriter(tmp_path / "t") as writer:
        for begin in (0, 2):
            writer.append_arrays(
                np.full(2, 3), np.full(2, 1), np.zeros(2, int), np.full(2, 2),
                {"x": ("node", np.arange(6) + begin)},
            )  # fmt: skip
    assert sg.GraphStore.load(tmp_path / "t").columns["x"].tolist() == [*range(6), *range(2, 8)]


def test_a_kill_anywhere_leaves_what_was_committed(tmp_path):
    """A new writer continues after the committed parts; the store is the same as without a kill."""
    graphs = _with([1, 300, 2])
    expected = sg.GraphStore.from_pyg(graphs, levels=OF_NODES, name="s")
    folder, k, killed, partly = tmp_path / "s", 0, True, set()
    while killed:
        killed = killed_before(k, lambda: _write_from(folder, graphs))
        k += 9  # out of some 250 calls
        if not folder.exists():
            partly.add(StoreWriter(folder).committed)
            _write_from(folder, graphs)
        # Parts that a kill left next to the finished store are not taken for new ones.
        assert StoreWriter(folder, overwrite=True).committed == 0
        assert_same_files(sg.GraphStore.load(folder), expected)
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
    assert partly == {0, 2, 3}


def _write_from(folder, graphs) -> None:
    with StoreWriter(folder, part_graphs=2, levels=OF_NODES) as writer:
        writer.extend(graphs[writer.committed :])


def test_parts_for_another_store_are_kept_beside_the_old_one(tmp_path):
    """The older store, which is to be replaced, is not mistaken for the result of the parts."""
    folder, others = tmp_path / "s", _with([4, 5, 6])
    _write_from(folder, _with([1, 2, 3]))
    others[0].edge_index = torch.zeros(2, 3, dtype=torch.long)
    with StoreWriter(folder, shard=0, part_graphs=2, levels=OF_NODES) as writer:
        writer.extend(others)
    (folder / "manifest.json").touch()  # as a copy that was put back has a later time
    again = StoreWriter(folder, levels=OF_NODES, overwrite=True)
    assert again.committed == 3
    assert again.finish().columns["k"].tolist() == [4, 5, 6]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_graphs_of_other_fields_are_refused_by_number(tmp_path):
    StoreWriter(tmp_path / "s", part_graphs=2, shard=0, levels=OF_NODES).extend(_with([1, 2]))
    with StoreWriter(tmp_path / "s", part_graphs=2, shard=0) as writer:
        other = _with([3, 4])
        for graph in other:
            graph.k, graph.smiles = graph.k.double(), "C"
        with pytest.raises(
            BadGraph,
            match=r"in graphs 2 to 3 of s than in those before: 'smiles' .*; 'k' is .*float64.*was",
        ):
            writer.extend(other)
        writer.extend(_with([5, 6]))
        assert writer.committed == 4
    for graph in other:
        del graph.k
    with StoreWriter(tmp_path / "s", part_graphs=2, shard=1) as writer:
        writer.extend(other)
    with pytest.raises(BadGraph, match=r"in part 2 .* part 0: 'smiles' .*; 'k' is"):
        StoreWriter(tmp_path / "s").finish()


def test_a_part_that_is_missing_is_named(tmp_path):
    with StoreWriter(tmp_path / "s", part_graphs=2, shard=0, levels=OF_NODES) as writer:
        writer.extend(_with([1, 2, 3, 4, 5, 6]))
    parts_in(parts_folder(tmp_path / "s"))[0, 1].rename(tmp_path / "away")
    with pytest.raises(BadGraph, match="lacks part 1 of shard 0"):
        StoreWriter(tmp_path / "s")


def test_nothing_is_no_store(tmp_path):
    with pytest.raises(BadGraph, match="has no graphs yet"), StoreWriter(tmp_path / "s"):
        pass
    with pytest.raises(ValueError, match="part_graphs=0"):
        StoreWriter(tmp_path / "s", part_graphs=0)
