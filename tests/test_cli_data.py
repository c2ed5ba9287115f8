"""``--data`` and ``--target`` work alike in every command that takes graphs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from support.command import printed_json, refusal, status_of
from torch_geometric.data import Data

from staticgraph.training.config import TrainConfig

TABLE = "smiles,id,a,b\n" + "".join(f"{'C' * k},{k},{k / 2},{k % 2}\n" for k in range(1, 21))
GIN = ["--model", "gin", "--hidden", "4", "--layers", "1"]
# Small arguments for every command that opens data.
COMMANDS = {
    "plan": ["plan", "--batch-size", "4"],
    "plan memory": ["plan", "--max-memory", "1GiB", "--min-steps", "1", *GIN],
    "probe": ["probe", *GIN],
    "check": ["check", "--model", "gin", "--batch-size", "4"],
    "train": ["train", *GIN, "--batch-size", "4", "--epochs", "1", "--compile-mode", "eager",
              "--out", "run"],
    "try": ["try", *GIN, "--batch-size", "4", "--modes", "eager", "--seconds", "1"],
    "bench": ["bench", "--eager", *GIN, "--batch-size", "2"],
    "convert": ["convert", "--out", "store"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    pytest.importorskip("rdkit", reason="the extra 'smiles' is not installed")
    (tmp_path / "m.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_columns_of_a_table_are_chosen(words, monkeypatch, capsys):
    """The opened data has the named columns, and no message says that columns were guessed."""
    opened = []
    import staticgraph.datasets as datasets
    from staticgraph.datasets.table import Table

    real, of = datasets.open, Table.of
    monkeypatch.setattr(
        datasets, "open", lambda *a, **k: opened.append(real(*a, **k)) or opened[-1]
    )
    monkeypatch.setattr(Table, "of", lambda *a, **k: opened.append(of(*a, **k)) or opened[-1])
    assert status_of([*words, "--data", "m.csv", "--target", "b", "a"]) in (0, None)
    found = opened[-1]
    targets = found.target.columns if isinstance(found, Table) else found.columns["y"][:2].tolist()
    assert targets in (("b", "a"), [[1, 0.5], [0, 1]])
    assert "predicts" not in capsys.readouterr().err


def test_a_run_on_several_columns_goes_on_and_begins_again(capsys):
    words = [*COMMANDS["train"], "--data", "m.csv"]
    assert status_of([*words, "--target", "a", "id"]) == 0
    assert tomllib.loads(Path("run/config.toml").read_text())["target"] == ["a", "id"]
    again = ["train", "--resume", "--out", "run", "--epochs", "2", "--json", "--target"]
    assert status_of([*again, "a", "id"]) == 0
    capsys.readouterr()
    assert "was begun with target=('a', 'id') and cannot go on with 'a'" in refusal(
        [*again, "a"], capsys
    )
    assert printed_json(
        ["train", "--config", "run/config.toml", "--out", "other", "--json"], capsys
    )["config"]["target"] == ["a", "id"]


def test_bench_takes_targets_of_every_shape_and_refuses_data_without(capsys):
    edges = torch.tensor([[0, 1], [1, 0]])
    graph = Data(x=torch.ones(3, 2), edge_index=edges, edge_attr=torch.ones(2, 1))
    for target, status in ((torch.ones(1), 0), (torch.ones(1, 2), 0), (None, 2)):
        graph.y = target
        torch.save([graph] * 4, "g.pt")
        assert status_of([*COMMANDS["bench"], "--data", "g.pt"]) == status
    assert "g has no target y" in capsys.readouterr().err


def test_one_name_in_a_list_is_the_name():
    assert TrainConfig("m.csv", ["a"]).target == "a"  # type: ignore[arg-type]
    assert TrainConfig("m.csv", []).target is None  # type: ignore[arg-type]
