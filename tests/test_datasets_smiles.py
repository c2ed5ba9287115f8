"""Tables of SMILES: OGB's features, and tables that cannot be read."""

from __future__ import annotations

import numpy as np
import pytest

from staticgraph import datasets
from staticgraph.errors import BadGraph


@pytest.fixture
def chem():
    return pytest.importorskip("rdkit.Chem", reason="the extra 'smiles' is not installed")


def test_features_are_ogbs(chem):
    """The example in the comments of OGB's ``ogb/utils/features.py``."""
    from staticgraph.datasets.smiles import atom_features, bond_features

    molecule = chem.MolFromSmiles("Cl[C@H](/C=C/C)Br")
    assert atom_features(molecule.GetAtomWithIdx(1)) == (5, 2, 4, 5, 1, 0, 2, 0, 0)
    assert bond_features(molecule.GetBondWithIdx(2)) == (1, 2, 0)
    # A wildcard atom, and a metal with a charge beyond the list: both get the last index.
    assert atom_features(chem.MolFromSmiles("*").GetAtomWithIdx(0))[0] == 118
    assert atom_features(chem.MolFromSmiles("[W+6]").GetAtomWithIdx(0))[3] == 11


def test_a_table_of_smiles(chem, tmp_path):
    (tmp_path / "m.csv").write_text(
        "mol_id,SMILES,logp,toxic,split\n"
        "a,C,1.5,0,train\n"
        "b,CO,,1,valid\n"
        "c,c1ccccc1,2.5,,test\n"
    )  # fmt: skip
    store = datasets.open(tmp_path / "m.csv")
    assert [data.num_nodes for data in store] == [1, 2, 6]
    assert [data.num_edges for data in store] == [0, 2, 12]
    np.testing.assert_array_equal(
        store.columns["y"], np.array([[1.5, 0], [np.nan, 1], [2.5, np.nan]], np.float32)
    )
    assert store[1].edge_index.tolist() == [[0, 1], [1, 0]]
    assert store[1].x[:, 0].tolist() == [5, 7], "carbon and oxygen"
    assert store[2].edge_attr.unique(dim=0).tolist() == [[3, 0, 1]], "aromatic and conjugated"
    assert {name: ids.tolist() for name, ids in store.splits.items()} == {
        "train": [0], "val": [1], "test": [2],
    }  # fmt: skip
    assert datasets.open(tmp_path / "m.csv", target="toxic").schema["y"].shape == (1,)


@pytest.mark.parametrize(
    ("table", "target", "message"),
    [
        ("smiles,y\n", None, "has no rows below its header"),
        ("mol,y\nC,1\n", None, "has the columns mol, y; one must be called smiles"),
        ("smiles,name\nC,a\n", None, "no column of numbers to predict: name (line 2: 'a' is no"),
        ("smiles,y\nC,\n", None, "no column of numbers to predict: y (empty)"),
        ("smiles,y\nC,inf\n", None, "line 2: 'inf' is not a number"),
        ("smiles;y\nC;1\n", None, "has cells separated by ';': separate them by commas"),
        ("smiles_a,smiles_b,y\nC,C,1\n", None, "one must be called smiles"),
        ("smiles,y\nC,1\n", "z", "has no column 'z'; it has smiles, y"),
        ("smiles,y,split\nC,1,dev\n", None, "line 2: split is 'dev'; use train, val or test"),
    ],
)
def test_tables_that_cannot_be_read(chem, tmp_path, table, target, message):
    (tmp_path / "m.csv").write_text(table)
    with pytest.raises(BadGraph) as caught:
        datasets.open(tmp_path / "m.csv", target=target)
    assert message in str(caught.value)


def test_targets_that_were_chosen_are_named(chem, tmp_path, capsys):
    (tmp_path / "m.csv").write_text("id,Canonical_SMILES, logP,name\n1,C,2.5,a\n2,CO,n/a,b\n")
    found = datasets.open(tmp_path / "m.csv", progress=True)
    assert capsys.readouterr().err == (
        "m.csv: predicts id, logP; not name (line 2: 'a' is not a number); --target names the "
        "right "
        "ones\n"
    )
    np.testing.assert_array_equal(found.columns["y"], np.array([[1, 2.5], [2, np.nan]]))
    datasets.open(tmp_path / "m.csv", target="logP", progress=True)
    assert capsys.readouterr().err == ""


def test_a_table_of_another_encoding(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,y\nC,1\n", encoding="utf-16")
    with pytest.raises(BadGraph, match=r"is not UTF-8 .*: save it as UTF-8"):
        datasets.open(tmp_path / "m.csv")


def test_progress_is_shown_for_long_work_only(chem, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("staticgraph.text.progress.EVERY_S", 0.0)
    (tmp_path / "m.csv").write_text("smiles,y\n" + "C,1\n" * 30)
    datasets.open(tmp_path / "m.csv")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("staticgraph.datasets.table.PROGRESS_FROM", 10)
    datasets.open(tmp_path / "m.csv")
    assert "reading m" in capsys.readouterr().err
    datasets.open(tmp_path / "m.csv", progress=False)
    assert capsys.readouterr().err == ""
