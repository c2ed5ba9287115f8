"""Commands answer at once: what needs no torch is answered without it, and its import announced."""

import json
import subprocess
import sys

import pytest
from support.command import refusal
from support.examples import EXAMPLES

from staticgraph.runner.report import Report
from staticgraph.training.report import EpochRecord, TrainReport

ESOL = str(EXAMPLES / "esol.npz")
# The commands run in a process of their own in which importing torch ends the command.
WITHOUT_TORCH = """
import contextlib, io, json, sys

class Wanted(BaseException):
    pass

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "torch_geometric"):
            raise Wanted(name)

sys.meta_path.insert(0, NoTorch())
from staticgraph import cli

found = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(arguments)
        except SystemExit as stopped:
            status = stopped.code
        except Wanted as wanted:
            status = f"wants {wanted}"
    found.append([status, out.getvalue(), err.getvalue()])
json.dump(found, sys.stdout)
"""


def without_torch(*commands):
    """Status, stdout and stderr of each command, in a process where torch cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(commands)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_version_help_and_slips_are_told_without_torch(tmp_path):
    commands = [
        (["--version"], 0, "staticgraph "),
        (["--help"], 0, "train-large"),
        *(
            ([name, "--help"], 0, f"staticgraph {name} ")
            for name in ("train", "plan", "serve", "try")
        ),
        (["train", "--data", "esol", "--model", "bert"], 2, "give one of gine, gps"),
        (["train", "--data", "esol", "--model", "no_such:build"], 2, "no module 'no_such' here"),
        (["train", "--data", "esol", "--epochs", "0"], 2, "give a whole number from 1"),
        (["train"], 2, "--data is required"),
        (["train", "--data", "nowhere.npz"], 2, "nowhere.npz: there is no such file"),
        (["try", "--data", "zinc"], 2, "cannot tell what data set 'zinc' is"),
        (["plan", "--data", "nowhere.csv"], 2, "there is no such file"),
        (["check", "--data", "esol", "--model", "bert"], 2, "give one of gine, gps"),
        (["probe", "--data", "nowhere.pt"], 2, "there is no such file"),
        (["bench", "--count-kernels", "--data", "nowhere.pt"], 2, "there is no such file"),
        (["convert", "--data", "nowhere.pt", "--out", "x"], 2, "there is no such file"),
        (["serve", "--run", "nowhere"], 2, "nowhere has no checkpoint.pt: train a model there"),
        (["train-large", "--task", "link", "--data", "no.npz"], 2, "there is no such file"),
        (["partition", "--data", "no.npz", "--out", "x"], 2, "there is no such file"),
        (["report", "nowhere"], 2, "there is no folder nowhere"),
        (["train", "--data", ESOL, "--target", "y"], 2, "chooses columns of a CSV"),
        (["train", "--resume", "--out", "nowhere"], 2, "so there is no run to resume"),
        (["train", "--data", ESOL, "--out", str(tmp_path)], 2, "holds a run already"),
    ]
    (tmp_path / "checkpoint.pt").touch()
    results = without_torch(*(arguments for arguments, _, _ in commands))
    for (arguments, status, words), (found, out, err) in zip(commands, results, strict=True):
        assert found == status, (arguments, found, err)
        assert words in out + err, (arguments, out, err)


def test_a_line_says_that_torch_is_loaded_before_it_is(tmp_path):
    commands = [
        ["train", "--data", ESOL, "--out", "runs/none"],
        ["try", "--data", ESOL],
        ["plan", "--data", ESOL, "--max-memory", "1GiB"],
        ["plan", "--data", "tu:MUTAG"],
        ["probe", "--data", ESOL],
        ["check", "--data", ESOL, "--model", "gine"],
        ["bench", "--count-kernels", "--data", ESOL],
        ["convert", "--data", "{graphs}", "--out", "nowhere"],
        ["partition", "--data", "cora", "--out", "nowhere"],
        ["train-large", "--task", "node", "--data", "cora", "--policy", "node-cache"],
        ["serve", "--run", str(tmp_path)],
    ]
    (tmp_path / "checkpoint.pt").touch()
    graphs = tmp_path / "graphs.pt"
    graphs.touch()
    commands = [[word.format(graphs=graphs) for word in words] for words in commands]
    for arguments, (status, out, err) in zip(commands, without_torch(*commands), strict=True):
        assert str(status).startswith("wants torch"), (arguments, status, err)
        assert err == "loading torch and PyG\n", arguments
        assert not out, arguments


def test_a_report_is_read_without_torch(tmp_path):
    report = TrainReport(
        folder="", config={"model": "a:b", "batch_size": 2},
        data={"name": "few", "splits": {"train": 1, "val": 0, "test": 0}},
        task="regression", metric="RMSE", parameters=1,
        epochs=(EpochRecord(0, 1.0, 0.5, 1, None, None),), test_metric=None, resumed_at=0,
        runner=Report("Net", "cpu (1 thread)", "eager", "as asked", None, (), (), {}),
    )  # fmt: skip
    report.save(tmp_path / "report.json")
    [[status, out, err]] = without_torch(["report", str(tmp_path)])
    assert (status, err) == (0, "")
    assert "a:b, 1 parameter, on few (1 graph to train, 0 to validate" in out


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ([], "has no report.json: no run; give the folder that staticgraph train was given"),
        (["checkpoint.pt"], "no run has finished there; continue it with staticgraph train --res"),
        (["report.json"], "its run has no checkpoint to write it from: train again"),
        (["report.json", "checkpoint.pt"], "continue it with staticgraph train --resume --out"),
    ],
)
def test_advice_fits_what_the_folder_holds(files, advice, tmp_path, capsys):
    for name in files:
        (tmp_path / name).write_text("{}")
    assert advice in refusal(["report", str(tmp_path)], capsys)


def test_data_that_pyg_does_not_read_are_planned_without_torch(tmp_path):
    commands = [
        ["plan", "--data", ESOL, "--batch-size", "64"],
        ["convert", "--data", ESOL, "--out", str(tmp_path / "store")],
    ]
    for status, out, _ in without_torch(*commands):
        assert status == 0
        assert "1,128" in out
