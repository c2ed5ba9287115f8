"""A diverging run: the report comes first, finite values are drawn, the good checkpoint stays."""

from __future__ import annotations

import json
import math

import pytest
import torch
from support.command import status_of
from support.few_molecules import few_molecules
from support.trained_run import trained
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph.errors import Diverged
from staticgraph.training import checkpoint
from staticgraph.training.report import TrainReport, read_steps
from staticgraph.training.run import Training
from staticgraph.training.tasks import Evaluation


@pytest.fixture(scope="module")
def data(tmp_path_factory, esol) -> str:
    return str(few_molecules(esol, 40, tmp_path_factory))


SMALL = {"model": "gin", "hidden": 8, "layers": 1, "batch_size": 8, "epochs": 3}
SMALL["compile_mode"] = "eager"
WORDS = [word for name, value in SMALL.items()
         for word in (f"--{name.replace('_', '-')}", str(value))]  # fmt: skip


@pytest.mark.usefixtures("painted")
def test_train_reports_and_exits_with_1(data, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["train", "--data", data, *WORDS, "--lr", "1e30", "--out", str(out), "--json"]
    assert status_of(words) == 1
    printed, err = capsys.readouterr()
    values = json.loads(printed, parse_constant=pytest.fail)
    assert values == json.loads((out / "report.json").read_text(), parse_constant=pytest.fail)
    assert values["diverged"] == 1
    assert values["test_metric"] is None
    assert "the training diverged in epoch 1: the loss of the batch of graphs" in err
    assert "lower --lr" in err.splitlines()[-1]
    losses = [step.loss for step in read_steps(out / "steps.csv")]
    assert math.isfinite(losses[0])
    assert not math.isfinite(losses[-1])
    assert (out / "report.png").read_bytes()[:4] == b"\x89PNG"
    assert status_of(["report", str(out)]) == 0
    assert "diverged in epoch 1: the loss is not finite" in capsys.readouterr().out


def test_the_last_good_checkpoint_stays(data, tmp_path, monkeypatch):
    """The loss is from before the last update, so the trained weights are checked as well."""
    finish = Training._finish_epoch

    def spoil(training, events):
        if training.loader.epoch == 2:
            next(training.model.parameters()).data.fill_(math.nan)
        finish(training, events)

    monkeypatch.setattr(Training, "_finish_epoch", spoil)
    with pytest.raises(Diverged, match="diverged in epoch 2: what was trained") as told:
        trained(data, tmp_path, **SMALL)
    assert told.value.epoch == 2
    assert len(checkpoint.load(tmp_path)["epochs"]) == 1
    assert TrainReport.load(tmp_path).diverged == 2
    monkeypatch.undo()
    assert status_of(["train", "--resume", "--out", str(tmp_path)]) == 0
    assert TrainReport.load(tmp_path).diverged is None


@pytest.mark.parametrize("bad", [(), (8,), (8, 9)])
def test_a_validation_loss_that_is_not_finite_is_told_with_the_graph(bad, tmp_path, capsys):
    edges = torch.tensor([[0, 1], [1, 0]])
    graphs = [
        Data(x=torch.ones(3, 2), edge_index=edges, y=torch.tensor([k / 2])) for k in range(10)
    ]
    for graph in bad:
        graphs[graph].x[0] = math.nan
    store = sg.GraphStore.from_pyg(graphs, name="few")
    store.with_splits(train=range(8), val=[8, 9], test=()).save(tmp_path / "few")
    words = ["train", "--data", str(tmp_path / "few"), *WORDS, "--epochs", "1"]
    assert status_of([*words, "--out", str(tmp_path / "run")]) == (1 if bad else 0)
    out, err = capsys.readouterr()
    assert ("the validation loss is not finite: " in err) is bool(bad)
    assert all(f"graph {graph}" in err.splitlines()[-1] for graph in bad)
    assert ("no epoch has a finite validation loss" in out) is bool(bad)
    assert status_of(["report", str(tmp_path / "run")]) == 0


def test_one_epoch_with_a_finite_validation_loss_is_enough(data, tmp_path, monkeypatch):
    """A model may overflow in one epoch and recover."""
    losses = iter([math.nan, 1.0, math.nan])
    monkeypatch.setattr(
        Training, "_evaluate", lambda run, split: Evaluation(next(losses, 0.0), 0.5, (3,))
    )
    assert status_of(["train", "--data", data, *WORDS, "--out", str(tmp_path)]) == 0


def test_the_cause_names_the_graphs(data, tmp_path):
    with pytest.raises(Diverged) as told:
        trained(data, tmp_path, **SMALL, lr=1e30)
    assert told.value.__cause__.graphs


def test_the_report_is_there_even_if_the_picture_fails(data, tmp_path, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no fonts")

    monkeypatch.setattr("staticgraph.training.plots.save_picture", broken)
    with pytest.raises(RuntimeError, match="no fonts"):
        trained(data, tmp_path, **{**SMALL, "epochs": 1})
    assert len(TrainReport.load(tmp_path).epochs) == 1
