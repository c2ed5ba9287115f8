"""Inputs that are easily mistaken for what a store takes: splits, batches, paths with a tilde."""

from __future__ import annotations

from pathlib import Path

import pytest

import staticgraph as sg
from staticgraph import datasets
from staticgraph.store.writer import StoreWriter
from staticgraph.training import options


@pytest.fixture(scope="module")
def graphs(esol):
    return esol[:12]


def test_a_split_that_there_is_not_says_how_to_name_one(graphs, tmp_path):
    store = sg.GraphStore.from_pyg(graphs)
    with pytest.raises(KeyError, match="no split 'train', it has no splits: name some"):
        store.splits["train"]
    named = store.with_splits(train=range(9), val=range(9, 12))
    named.save(tmp_path / "store")
    for each in (named, sg.GraphStore.load(tmp_path / "store")):
        with pytest.raises(KeyError) as caught:
            each.splits["valid"]
        assert str(caught.value).startswith("the store has no split 'valid', its splits are train")
        assert each.splits.get("test") is None
        assert "test" not in each.splits


def test_a_path_may_begin_with_the_home_folder(graphs, tmp_path, monkeypatch):
    """As datasets.open has always accepted; a shell does not expand --out=~/runs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = sg.GraphStore.from_pyg(graphs)
    store.save("~/my store")
    plan = sg.plan_buckets(store, batch_size=4)
    plan.save("~/plan.json")
    with StoreWriter("~/written") as writer:
        writer.extend(graphs)
    assert {path.name for path in tmp_path.iterdir()} >= {"my store", "plan.json", "written"}
    assert not Path("~").exists()
    for found in (sg.GraphStore.load("~/my store"), datasets.open("~/my store")):
        assert len(found) == len(graphs)
    assert sg.BucketPlan.load("~/plan.json") == plan
    assert options.read_path("~/runs", folder=True, written=True) == tmp_path / "runs"
