"""Data sets that PyG and OGB download: splits, tasks, labels, and what to do offline."""

from __future__ import annotations

import sys
from types import ModuleType
from urllib.error import URLError

import pytest
import torch
import torch_geometric.datasets
from torch_geometric.data import Data

from staticgraph import datasets
from staticgraph.datasets import pyg as from_pyg
from staticgraph.errors import DatasetUnavailable, MissingPackage, UnknownDataset


def graphs_with(**fields) -> list[Data]:
    return [
        Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2, **fields) for _ in range(20)
    ]


def test_tu_through_pyg(monkeypatch, tmp_path):
    seen = {}

    def stand_in(root, name):
        seen.update(root=root, name=name)
        return graphs_with(y=torch.tensor([1]))

    monkeypatch.setattr(from_pyg, "TUDataset", stand_in)
    store = datasets.open("tu:IMDB-BINARY", root=tmp_path)
    assert seen == {"root": str(tmp_path / "tu"), "name": "IMDB-BINARY"}
    assert store.name == "IMDB-BINARY"
    assert store[3].x.tolist() == [[1.0], [1.0]], "no node labels: ones"
    assert store[3].y.tolist() == [1]
    assert len(store.splits["train"]) == 16


def test_molnet_through_pyg(monkeypatch, tmp_path):
    class StandIn(list):
        names = torch_geometric.datasets.MoleculeNet.names

        def __init__(self, root, name):
            assert root == str(tmp_path / "molnet")
            super().__init__(graphs_with(x=torch.ones(2, 9).long(), y=torch.ones(1, 1)))

    monkeypatch.setattr(from_pyg, "MoleculeNet", StandIn)
    assert datasets.open("molnet:ESOL", root=tmp_path).name == "ESOL"
    with pytest.raises(UnknownDataset, match=r"molnet:nope: MoleculeNet has bace, bbbp, "):
        datasets.open("molnet:nope", root=tmp_path)


@pytest.mark.parametrize(
    ("task", "y", "dtype", "values"),
    [
        ("binary classification", torch.tensor([[1]]), "float32", [[1.0]]),
        ("multiclass classification", torch.tensor([[4]]), "int64", [4]),
        ("regression", torch.tensor([[0.5]]), "float32", [[0.5]]),
    ],
)
def test_ogb_keeps_its_split_and_the_dtype_tells_the_task(monkeypatch, task, y, dtype, values):
    class StandIn(list):
        task_type = task

        def __init__(self, name, root):
            if name == "ogbg-nope":
                raise ValueError(f"Invalid dataset name {name}.")
            super().__init__(graphs_with(x=torch.ones(2, 9).long(), y=y))

        def get_idx_split(self):
            ids = torch.arange(20)
            return {"train": ids[:5], "valid": ids[5:7], "test": ids[7:]}

    package = ModuleType("ogb")
    module = ModuleType("ogb.graphproppred")
    module.PygGraphPropPredDataset = StandIn
    monkeypatch.setitem(sys.modules, "ogb", package)
    monkeypatch.setitem(sys.modules, "ogb.graphproppred", module)
    store = datasets.open("ogb:ogbg-molhiv")
    assert {name: len(ids) for name, ids in store.splits.items()} == {
        "train": 5, "val": 2, "test": 13,
    }  # fmt: skip
    assert (store.schema["y"].dtype, store[0].y.tolist()) == (dtype, values)
    with pytest.raises(UnknownDataset, match="ogb:ogbg-nope: Invalid dataset name"):
        datasets.open("ogb:ogbg-nope")


def test_offline_says_what_to_do(monkeypatch, tmp_path):
    def offline(*_, **__):
        raise URLError("Name or service not known")

    monkeypatch.setattr(from_pyg, "TUDataset", offline)
    with pytest.raises(DatasetUnavailable, match=r"tu:PROTEINS is not under .* check the name and"):
        datasets.open("tu:PROTEINS", root=tmp_path)


def test_a_missing_package_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ogb", None)
    monkeypatch.setitem(sys.modules, "ogb.graphproppred", None)
    with pytest.raises(MissingPackage, match=r"pip install ogb"):
        datasets.open("ogb:ogbg-molhiv")
    monkeypatch.setitem(sys.modules, "rdkit", None)
    (tmp_path / "m.csv").write_text("smiles,y\nC,1\n")
    with pytest.raises(MissingPackage, match=r"pip install rdkit"):
        datasets.open(tmp_path / "m.csv")
