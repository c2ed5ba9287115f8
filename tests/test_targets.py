"""How the labels of a table or a store are interpreted: as numbers, yes/no or classes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from support.command import status_of
from support.schemas import schema_of

import staticgraph as sg
from staticgraph import datasets
from staticgraph.datasets.convert import convert
from staticgraph.training.build_run import digest_of
from staticgraph.training.checkpoint import Trained

pytest.importorskip("rdkit.Chem", reason="the extra 'smiles' is not installed")

ROWS = 30
SMALL = ["--model", "gcn", "--hidden", "4", "--layers", "1", "--batch-size", "8", "--epochs", "1"]
TRAIN = ["train", *SMALL, "--kernels", "off", "--compile-mode", "eager"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(cells, header="y", name="m.csv"):
    lines = [f"{'C' * (1 + k % 7)}O,{cells(k)}\n" for k in range(ROWS)]
    with open(name, "w") as file:
        file.write(f"smiles,{header}\n{''.join(lines)}")
    return name


def words(k):
    return ("low", "mid", "high")[k % 3]


# cells; options; dtype; the first labels; names of classes
TAKEN = {
    "classes from 0": (lambda k: k % 3, {}, "int64", [0, 1, 2], ()),
    "as floats": (lambda k: f"{k % 3}.0", {}, "int64", [0, 1, 2], ()),
    "classes from 1": (lambda k: 1 + k % 3, {}, "int64", [0, 1, 2], ("1", "2", "3")),
    "two numbers": (lambda k: 1 - 2 * (k % 2), {}, "int64", [1, 0, 1], ("-1", "1")),
    "words by name": (words, {"target": "y"}, "int64", [1, 2, 0], ("high", "low", "mid")),
    "0 and 1": (lambda k: k % 2, {}, "float32", [[0], [1], [0]], ()),
    "true": (lambda k: k % 2 == 0, {"target": "y"}, "float32", [[1], [0], [1]], ()),
    "0 and 1 as classes": (lambda k: k % 2, {"task": "classes"}, "int64", [0, 1, 0], ()),
    "gaps": (lambda k: 2 * (k % 3), {}, "float32", [[0], [2], [4]], ()),
    "gaps as classes": (lambda k: 2 * (k % 3), {"task": "classes"}, "int64", [0, 1, 2],
                        ("0", "2", "4")),
    "too many": (lambda k: k % 7, {}, "float32", [[0], [1], [2]], ()),
    "fractions": (lambda k: k % 3 / 2, {}, "float32", [[0], [0.5], [1]], ()),
    "as numbers": (lambda k: k % 3, {"task": "regression"}, "float32", [[0], [1], [2]], ()),
    "one is missing": (lambda k: k % 3 if k else "", {}, "float32", [[np.nan], [1], [2]], ()),
    "names in all": (lambda k: f"m{k}", {"task": "classes", "target": "y"}, "int64", [0, 1, 12],
                     tuple(sorted(f"m{k}" for k in range(ROWS)))),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "options", "dtype", "first", "names"), TAKEN.values(), ids=TAKEN)
def test_what_a_column_is_taken_for(cells, options, dtype, first, names):
    """Also when the table is converted in several parts."""
    path = table(cells)
    store = datasets.open(path, progress=False, **options)
    y = store.schema["y"]
    assert (y.dtype, y.classes) == (dtype, names)
    np.testing.assert_array_equal(store.columns["y"][:3], np.array(first))
    whole = convert(path, "stretches", part_graphs=7, progress=False, **options)
    assert whole.schema == store.schema
    np.testing.assert_array_equal(whole.columns["y"], store.columns["y"])


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        (words, {}, r"no column of numbers .* name a column of classes: --target y"),
        (lambda k: f"m{k}", {"target": "y"}, r"y has 30 different words in 30 rows, as a name has"),
        (lambda k: words(k) if k else "", {"target": "y"}, r"line 2: in y, there is no label"),
        (
            lambda k: k % 3 if k else "",
            {"task": "classes"},
            r"line 2: in y, there is no label \(1 such row\), .*: drop such rows; or .* columns",
        ),
        (lambda k: k % 3, {"task": "binary"}, r"--task binary takes 0 and 1, .* y has '2'"),
        (lambda k: k / 2, {"task": "classes"}, r"takes words or whole numbers, and y has '0.5'"),
        (words, {"task": "regression", "target": "y"}, r"line 2: in y, 'low' is not a number"),
        (lambda k: k if k else "x", {"target": "y"}, r"line 2: in y, 'x' is not a number"),
    ],
)
def test_labels_that_are_not_what_was_asked_for(cells, options, message):
    with pytest.raises(sg.BadGraph, match=message):
        datasets.open(table(cells), progress=False, **options)


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (
            lambda k: k % 3,
            "m.csv: y is taken as 3 classes (0 to 2), whose order counts for "
            "nothing; if these are counts, years or grades, --task regression takes them as",
        ),
        (lambda k: 2020 + k % 2, "m.csv: y is taken as 2 classes (2020, 2021), whose "),
        (
            lambda k: k % 3 if k else "",
            "m.csv: y is taken as a number, since line 2 has no label, ",
        ),
        (lambda k: 2015 + k % 6, ""),
        (lambda k: k / 2, ""),
    ],
)
def test_what_was_guessed_is_said(cells, line, capsys):
    path = table(cells)
    datasets.open(path)
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert bool(said) == bool(line)
    datasets.open(path, task="regression")
    assert capsys.readouterr().err == ""


def store_of(y, dtype):
    nodes, none = np.ones(len(y), int), np.empty(0, np.int64)
    fields = {"y": ("graph", np.array(y, dtype))}
    return sg.GraphStore.from_arrays(nodes, 0 * nodes, none, none, fields, name="toy")


@pytest.mark.parametrize(
    ("y", "dtype", "task", "kept", "names"),
    [
        ([0, 1, 1, 0], "float32", "classes", ("int64", [0, 1, 1, 0]), ()),
        ([3, 5, 5, 3], "float32", "classes", ("int64", [0, 1, 1, 0]), ("3", "5")),
        ([-1, 1, 1, -1], "int64", "classes", ("int64", [0, 1, 1, 0]), ("-1", "1")),
        ([0, 2, 2, 0], "int64", "classes", ("int64", [0, 2, 2, 0]), ()),
        ([0, 1, 1, 0], "int64", "binary", ("float32", [0, 1, 1, 0]), ()),
        ([0, 2, 2, 0], "int64", "regression", ("float32", [0, 2, 2, 0]), ()),
    ],
)
def test_a_store_takes_a_task_too(y, dtype, task, kept, names):
    store_of(y, dtype).save("store")
    store = datasets.open("store", task=task)
    assert (store.schema["y"].dtype, store.schema["y"].classes) == (kept[0], names)
    np.testing.assert_array_equal(store.columns["y"], kept[1])
    assert datasets.open("store").schema["y"].dtype == dtype, "what is on disk is as it was"
    assert store[1].y.item() == kept[1][1]


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        ([0, 2, 1, 0], "binary", "takes 0 and 1, and y has 2"),
        ([0.5, 1, 1, 0], "classes", "takes whole numbers, and y has 0.5"),
        ([0, np.nan, 1, 0], "classes", "graph 1 has no label"),
    ],
)
def test_a_store_whose_labels_are_something_else(y, task, message):
    store_of(y, "float32").save("store")
    with pytest.raises(sg.BadGraph, match=message):
        datasets.open("store", task=task)


def test_names_of_classes_reach_the_report_and_the_run(capsys):
    words_of = ["--data", table(words), "--target", "y", "--out", "run"]
    assert status_of([*TRAIN, *words_of, "--json"]) == 0
    printed = capsys.readouterr()
    assert "predicting one of 3 classes (high, low, mid), judged by accuracy" in printed.err
    report = json.loads(printed.out)
    Draft202012Validator(schema_of("train")).validate(report)
    assert (report["task"], report["metric"], report["outputs"]) == ("classes", "accuracy", 3)
    assert report["classes"] == ["high", "low", "mid"]
    assert status_of(["report", "run"]) == 0
    assert "predicting one of 3 classes (high, low, mid), judged by" in capsys.readouterr().out
    trained = Trained.load(Path("run"), torch.device("cpu"))
    assert trained.schema["y"].classes == ("high", "low", "mid")


def test_the_task_is_a_setting_of_the_run(capsys):
    """It is in the settings file, survives a resume, and decides how 0 and 1 are interpreted."""
    path = table(lambda k: k % 2)
    assert status_of([*TRAIN, "--data", path, "--task", "regression", "--out", "run"]) == 0
    assert "predicting a number, judged by RMSE" in capsys.readouterr().err
    with open("run/config.toml") as file:
        assert 'task = "regression"\n' in file
    assert status_of(["train", "--resume", "--out", "run", "--epochs", "2"]) == 0
    capsys.readouterr()
    assert status_of(["train", "--config", "run/config.toml", "--out", "again"]) == 0
    assert "predicting a number" in capsys.readouterr().err
    for command in (["check"], ["plan"]):
        model = ["--model", "gcn"] if command != ["plan"] else []
        assert status_of([*command, *model, "--data", path, "--task", "classes"]) == 0, command


def test_stores_of_other_classes_are_not_put_together():
    """The same numbers would mean different classes; with one store of non-molecules, the result is
    not of molecules either."""
    datasets.open(table(words), target="y", progress=False).save("one")
    other = datasets.open(table(lambda k: "ab"[k % 2]), target="y", progress=False)
    other.save("two")
    with pytest.raises(sg.BadGraph, match=r"'y' is int64 \[\] per graph \(a, b\), was .* \(high, "):
        sg.GraphStore.load(["one", "two"])
    plain = replace(other, schema=replace(other.schema, molecules=False))
    plain.save("three")
    for names, molecules in ((["two", "two"], True), (["two", "three"], False)):
        assert sg.GraphStore.load(names).schema.molecules is molecules
    assert digest_of(plain) == digest_of(other), "a run goes on with either"
