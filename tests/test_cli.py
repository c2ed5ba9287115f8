"""The command line: help, results on stdout, one-line errors."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import torch
from support.command import arguments_of, help_of, printed_json, refusal, write_module
from support.few_molecules import few_molecules
from support.patience import patience
from support.program import run_program
from torch_geometric.data import Batch, Data

import staticgraph as sg
from staticgraph import cli, datasets, models
from staticgraph.datasets import specs
from staticgraph.steps.compilation import modes
from staticgraph.text import progress
from staticgraph.training import options, train
from staticgraph.training.checkpoint import Trained
from staticgraph.training.config import TrainConfig

SMALL = ["--model", "gin", "--hidden", "8", "--layers", "1", "--batch-size", "32", "--epochs", "1"]
SMALL += ["--compile-mode", "eager"]


@pytest.fixture(scope="module")
def data(tmp_path_factory, esol) -> str:
    return str(few_molecules(esol, 80, tmp_path_factory))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "done"
    assert cli.main(["train", "--data", data, *SMALL, "--out", str(folder)]) == 0
    return folder


# ---------------------------------------------------------------------- help


def test_options_have_the_defaults_and_choices_of_the_library():
    named = {argument.name: argument for argument in arguments_of("train")}
    for field in fields(TrainConfig):
        option = named[f"--{field.name.replace('_', '-')}"]
        assert option.required == (field.name == "data")
        assert field.name == "data" or option.field_info.default == field.default
    assert options.MODELS == models.NAMES
    assert options.TASKS == specs.TASKS
    assert named["--compile-mode"].parameter.choices == modes.MODES
    assert named["--pool"].parameter.choices == tuple(models.POOLS)


VALUES = {int: "INT", float: "FLOAT", str: "STR", bool: ""}


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_every_option_says_what_it_is_and_no_line_is_wide(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = help_of(command)
    assert max(map(len, text.splitlines())) <= 100
    arguments, plain = arguments_of(command) if command else [], " ".join(text.split())
    for argument in arguments:
        default, choices = argument.field_info.default, argument.get_choices(force=True)
        assert " ".join((argument.parameter.help or argument.name).rstrip(".").split()) in plain
        kind, *_ = get_args(argument.hint) or (argument.hint,)
        value = argument.parameter.metavar or ("CHOICE" if choices else VALUES[kind])
        assert argument.index is not None or f"{argument.name} {value}".rstrip() in text
        if argument.get_choices():
            assert f"one of {', '.join(choices)}" in plain, argument.name
        if isinstance(default, str | int | float) and default not in (False, ""):
            assert f"(default: {default})" in plain, argument.name
    assert plain.count("(required)") == sum(argument.required for argument in arguments)


def test_groups_of_options_are_in_their_order():
    headings = [line for line in help_of("plan").splitlines() if re.fullmatch(r"\S.*:", line)]
    assert headings == [
        "For example:",
        "Parameters:",
        "data:",
        "model:",
        "files:",
        "what to plan (one of; --graphs 128 by default):",
        "memory (with --data; the largest batches that fit):",
        "how:",
        "Options:",
    ]


# ---------------------------------------------------------------------- results


@pytest.mark.usefixtures("painted")
def test_train_prints_results_on_stdout_and_progress_on_stderr(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    assert cli.main(["train", "--data", data, *SMALL, "--out", str(tmp_path / "r")]) == 0
    out, err = capsys.readouterr()
    assert "graphs/s" in out
    assert "val RMSE" in out
    assert "test RMSE of the final model" in out
    assert out.rstrip().endswith(f"picture: {tmp_path}/r/report.png")
    assert (tmp_path / "r" / "report.png").stat().st_size > 10_000
    assert "64 of 80 graphs of few in 2 batches per epoch; buckets (nodes=" in err
    assert "epoch 1/1" in err
    assert "graphs/s" in err
    assert "epoch 1: loss" in err
    (tmp_path / "r" / "report.png").unlink()  # as where matplotlib is missing
    assert cli.main(["report", str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    assert "steps: " in out
    assert "picture: " not in out


def test_report_prints_what_train_printed(finished, capsys):
    assert cli.main(["report", str(finished)]) == 0
    text = capsys.readouterr().out
    assert "gin, 1 layer of 8" in text
    assert "nodes filled" in text
    values = printed_json(["report", str(finished), "--json"], capsys)
    assert values == json.loads((finished / "report.json").read_text())


def test_resume_needs_nothing_but_the_folder(finished, capsys):
    values = printed_json(
        ["train", "--resume", "--out", str(finished), "--epochs", "2", "--json"], capsys
    )
    assert [epoch["epoch"] for epoch in values["epochs"]] == [0, 1]
    assert values["resumed_at"] == 2


@pytest.mark.parametrize("split", ["all", "test"])
def test_predictions_are_those_of_plain_pyg(split, data, finished, tmp_path, capsys):
    """Every graph once, in the order of the data set, as CSV and as JSON."""
    words = ["predict", "--run", str(finished), "--data", data, "--split", split]
    words += ["--compile-mode", "eager"]
    document = printed_json([*words, "--json"], capsys)
    store = datasets.open(data)  # with the splits of the run's seed
    ids = list(range(len(store))) if split == "all" else sorted(store.splits["test"].tolist())
    batch = Batch.from_data_list([store[i] for i in ids])
    model = Trained.load(finished, torch.device("cpu")).model
    with torch.no_grad():
        expected = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, len(ids))
    assert document["graph_ids"] == ids
    torch.testing.assert_close(torch.tensor(document["outputs"]), expected)
    assert cli.main([*words, "--out", str(tmp_path / "p.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [int(row["graph_id"]) for row in rows] == ids
    assert [[float(row["output"])] for row in rows] == document["outputs"]


FLAT = """\
import torch
from torch_geometric.nn import global_mean_pool


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(9, 1)

    def forward(self, x, batch):
        return global_mean_pool(super().forward(x.float()), batch).squeeze(1)
"""


def test_a_model_of_a_number_per_graph_is_predicted(data, tmp_path, monkeypatch, capsys):
    """Its output is ``[G]``, without columns."""
    write_module("flat_net", FLAT, tmp_path, monkeypatch)
    words = ["--data", data, "--compile-mode", "eager"]
    train_words = ["train", *words, "--model", "flat_net:Net", "--epochs", "1", "--out", "flat"]
    assert cli.main(train_words) == 0
    capsys.readouterr()
    assert {
        len(row)
        for row in printed_json(["predict", *words, "--run", "flat", "--json"], capsys)["outputs"]
    } == {1}


def test_predictions_need_the_fields_of_the_training_but_no_labels(
    data, finished, tmp_path, capsys
):
    graphs = [graph.clone() for graph in datasets.open(data)]
    for graph in graphs:
        del graph.y
    datasets_of = {"unlabelled": graphs}
    datasets_of["other fields"] = [Data(x=g.x.float(), edge_index=g.edge_index) for g in graphs]
    datasets_of["other categories"] = [g.clone().update({"x": g.x + 200}) for g in graphs]
    outcomes = {}
    for name, listed in datasets_of.items():
        sg.GraphStore.from_pyg(listed, name=name).save(tmp_path / name)
        words = ["predict", "--run", str(finished), "--data", str(tmp_path / name), "--json"]
        status = cli.main([*words, "--compile-mode", "eager"])
        outcomes[name] = (status, *capsys.readouterr())
    expected = printed_json(["predict", "--run", str(finished), "--data", data, "--json"], capsys)[
        "outputs"
    ]
    outputs = torch.tensor(json.loads(outcomes["unlabelled"][1])["outputs"])
    torch.testing.assert_close(outputs, torch.tensor(expected))
    assert "differs in edge_attr, x from the data" in outcomes["other fields"][2]
    assert "train on data with these categories too" in outcomes["other categories"][2]
    assert [status for status, *_ in outcomes.values()] == [0, cli.FAILED, cli.FAILED]


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Commands:"),
        (["train"], "the argument --data is required, but for --resume"),
        (["train", "--data", "a", "--model", "gpss"], "for your own model; did you mean 'gps'?"),
        (["trian"], "'trian': give one of try, check, train, "),
        (["trian"], "; did you mean 'train'? (see staticgraph --help)"),
        (
            ["bench", "--data", "a", "--for", "H100"],
            'invalid value "H100" for --for. Choose from: "h100"',
        ),
        (
            ["plan", "--bathc-size=3"],
            "staticgraph plan: unknown option: --bathc-size. Did you mean --batch-size? "
            "(see staticgraph plan --help)\n",
        ),
        (["train", "--dta", "a"], "with it; not understood: --dta a (see"),
        (["train", "--config", "no.toml"], "no.toml: there is no such file of settings (looked in"),
        (["plan", "--data"], "parameter --data requires an argument (see"),
        (
            ["plan", "--data", "a", "--cost", "1", "2"],
            "parameter --cost requires at least 4 elements. Got 2 (see",
        ),
        (["plan", "--data", "a", "--efficiency", "1"], "'1': give a number above 0 to 0.9999"),
        (["plan", "--data", "a", "extra"], "not understood: ['extra'] (see"),
        (["train", "--data", "a", "--model", "bert:"], "MODULE:NAME, such as mymodule:build"),
        (["train", "--data", "a", "--resume", "--overwrite"], "not allowed with"),
        (["report"], "DIR"),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    assert message in refusal(arguments, capsys)


def test_ctrl_c_says_how_to_go_on(data, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise train.Interrupted("stopped after 3 steps; continue with staticgraph train --resume")

    monkeypatch.setattr(train, "train", stop)
    assert cli.main(["train", "--data", data]) == cli.INTERRUPTED
    assert capsys.readouterr().err.strip() == (
        "staticgraph: stopped after 3 steps; continue with staticgraph train --resume"
    )


@pytest.mark.parametrize("module", ["staticgraph", "staticgraph.cli"])
def test_as_a_module(module):
    done = run_program(["-m", module, "report", "nowhere"], timeout=patience(60))
    assert done.returncode == 2
    assert done.stderr.startswith("staticgraph report: there is no folder nowhere: give")
