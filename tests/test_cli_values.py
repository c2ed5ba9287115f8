"""No value of any option of any command leads to a traceback.

The table is the parser's own: every option that it has is given every absurd value, through
``main``, over tiny data. What a command refuses must be one line and exit status 2; what it takes
runs. Loops that only repeat what is built by then (training steps, measurements, pictures) are left
out here, since the tests of the commands run them: files are opened, models and plans are built,
and folders are made for every value.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.command import status_of

import staticgraph as sg
from staticgraph import cli
from staticgraph.checking.preflight import preflight
from staticgraph.cli import values
from staticgraph.cli.probe import probe_model
from staticgraph.cli.reports.plan_plots import map_around
from staticgraph.dryrun import baseline
from staticgraph.dryrun.operations import PHASES, count_step
from staticgraph.training.report import TrainReport
from staticgraph.training.run import Training

GIN = ["--model", "gin", "--hidden", "4", "--layers", "1"]
LINK = ["--epochs", "1", "--batch-size", "10", "--chunks", "2", "--negatives", "4", "--dimension",
        "4", "--policy", "in-memory"]  # fmt: skip
# What each command is given besides the option in question; names are those of the folder below.
BASES = {
    "plan histogram": ["plan", "--histogram", "sizes.csv", "--graphs", "4"],
    "plan limits": ["plan", "--histogram", "sizes.csv", "--limits", "9", "20", "--max-graphs", "4"],
    "plan data": ["plan", "--data", "few", "--batch-size", "4"],
    "plan memory": ["plan", "--data", "few", *GIN, "--max-memory", "1GiB", "--min-steps", "1"],
    "probe": ["probe", "--data", "few", *GIN],
    "check": ["check", "--data", "few", "--model", "tiny_models:build", "--batch-size", "4"],
    "train": ["train", "--data", "few", *GIN, "--batch-size", "4", "--epochs", "1", "--out", "r"],
    "report": ["report", "run"],
    "bench": ["bench", "--count-kernels", "--data", "few", *GIN, "--batch-size", "2"],
    "partition arrays": ["partition", "--edges", "edges.npy", "--nodes", "12", "--out", "g"],
    "partition data": ["partition", "--data", "triples.npz", "--out", "g"],
    "train-large link": ["train-large", "--task", "link", "--data", "triples.npz", *LINK, "--out",
                         "large"],
    "train-large encoder": ["train-large", "--task", "link", "--data", "triples.npz", *LINK,
                            "--encoder", "sage", "--fanouts", "2", "--out", "large"],
    "train-large node": ["train-large", "--task", "node", "--data", "graph.npz", "--policy",
                         "in-memory", "--fanouts", "2", "--epochs", "1", "--out", "large"],
}  # fmt: skip
ABSURD = (
    "", " ", "0", "-1", "1.5", "nan", "inf", "-inf", "1e30", "3e38", "1e99", "9" * 30, str(2**63),
    "9" * 5000,
    "bogus", "bogus:bogus", "auto", "None", "missing.npz", "missing/missing", "a-folder", "few",
    "empty.npz", "nothing.npz", "noise.npz", "noise.npy", "noise.csv", "noise.pt", "noise.json",
    "notes.txt", "text.npz", "header.csv", "sizes.csv", "bom.csv", "edges.npy", "graph.npz",
    "triples.npz", "outside.npz", "tiny_models.py", "x" * 300,
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory, esol) -> Path:
    """A folder with a tiny one of everything, and with files that are not what their names say."""
    folder = tmp_path_factory.mktemp("values")
    sg.GraphStore.from_pyg([esol[i] for i in range(20)], name="few").with_splits(
        train=range(12), val=range(12, 16), test=range(16, 20)
    ).save(folder / "few")
    (folder / "sizes.csv").write_text("num_nodes,num_edges,count\n3,4,5\n5,8,2\n")
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 12, (2, 40))
    np.save(folder / "edges.npy", edges)
    np.savez(folder / "graph.npz", edges=edges[:, edges[0] != edges[1]], num_nodes=12)
    triples = np.stack([edges[0], edges[0] % 2, edges[1]])
    np.savez(folder / "triples.npz", num_entities=12, num_relations=2, train=triples[:, :30],
             valid=triples[:, 30:35], test=triples[:, 35:])  # fmt: skip
    (folder / "tiny_models.py").write_text(
        "from staticgraph import models\n\n\ndef build(store):\n"
        "    return models.build('gin', store, hidden=4, layers=1)\n"
    )
    (folder / "a-folder").mkdir()
    (folder / "empty.npz").touch()
    np.savez(folder / "nothing.npz")
    for ending in ("npz", "npy", "csv", "pt", "json"):
        (folder / f"noise.{ending}").write_bytes(rng.bytes(500))
    (folder / "notes.txt").write_text("mine\n")
    (folder / "text.npz").write_text("mine\n")
    (folder / "bom.csv").write_bytes(b"\xef\xbb\xbf" + (folder / "sizes.csv").read_bytes())
    np.savez(folder / "outside.npz", edges=np.array([[0], [9]]), num_nodes=5)
    (folder / "header.csv").write_text("num_nodes,num_edges,count\n")
    return folder


@pytest.fixture(scope="module")
def measured(place):
    """A model of memory, and a run, as the real commands make them."""
    store = sg.GraphStore.load(place / "few")
    args = argparse.Namespace(
        model="gin", hidden=4, layers=1, dropout=0.0, optimizer="adam", autocast=None, accumulate=1
    )
    words = [*BASES["train"][:-1], str(place / "run")]
    words[words.index("few")] = str(place / "few")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert status_of(words) == 0
    return probe_model(store, args)


@pytest.fixture
def tiny(place, measured, tmp_path, monkeypatch) -> Path:
    """The folder to be in; loops, measurements and pictures are left out."""
    folder = tmp_path / "here"
    shutil.copytree(place, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))

    def trained(training: Training) -> TrainReport:
        training.folder.mkdir(exist_ok=True)
        training.plan.save(training.folder / "plan.json")
        len(training.loader)
        return TrainReport.load(folder / "run")

    def probed(model, store, **options):
        return measured

    def nothing(*arguments, **options):
        return None

    first = {}

    def once(name, work):
        """Work whose result is that of its first call."""

        def done(*arguments, **options):
            if name not in first:
                first[name] = work(*arguments, **options)
            return first[name]

        return done

    monkeypatch.setattr(Training, "run", trained)
    monkeypatch.setattr("staticgraph.probing.probe.probe", probed)

    def launched(model, plan, target, kernels, dtype=None):
        name = baseline.KERNELS if kernels else baseline.STOCK
        return baseline.Column(name, "launches", dict.fromkeys(PHASES, 1)), f"as on {target}"

    monkeypatch.setattr("staticgraph.dryrun.baseline.count_step", once("count", count_step))
    monkeypatch.setattr("staticgraph.dryrun.baseline.launched", launched)
    monkeypatch.setattr("staticgraph.cli.reports.plan_plots.map_around", once("map", map_around))
    monkeypatch.setattr("staticgraph.checking.preflight.preflight", once("check", preflight))
    for picture in (
        "cli.reports.plan_plots.save_plan_picture",
        "cli.reports.plan_plots.save_cost_picture",
        "cli.reports.memory_plots.save_memory_picture",
        "outofcore.buffer.timeline.plot",
    ):
        monkeypatch.setattr(f"staticgraph.{picture}", nothing)
    return folder


def actions(command: str) -> Iterator[argparse.Action]:
    """Every option and argument that a command has, but for ``--help``."""
    commands = next(a for a in cli.parser()._actions if isinstance(a.choices, dict))
    assert commands.choices is not None
    for action in commands.choices[command]._actions:
        if action.dest != "help":
            yield action


def given(base: list[str], action: argparse.Action, value: str) -> list[str]:
    """The words of a command with an option at a value, instead of at its own."""
    if not action.option_strings:
        return [base[0], value]
    name = action.option_strings[-1]
    words, at = [], 0
    while at < len(base):
        if base[at] == name:
            at += 1
            while at < len(base) and not base[at].startswith("--"):
                at += 1
            continue
        words.append(base[at])
        at += 1
    if action.nargs == 0:
        return [*words, name]
    if action.nargs == "+":
        return [*words, name, value, value]
    if isinstance(action.nargs, int):
        return [*words, name, *([value] * action.nargs)]
    return [*words, f"{name}={value}"]


def test_the_table_has_every_command():
    commands = next(a for a in cli.parser()._actions if isinstance(a.choices, dict))
    assert {base[0] for base in BASES.values()} == set(commands.choices)


@pytest.mark.parametrize("base", BASES)
def test_no_value_of_any_option_leads_to_a_traceback(base, tiny):
    before = sorted(path.name for path in tiny.iterdir())
    wrong = []
    for action in actions(BASES[base][0]):
        for value in ABSURD if action.nargs != 0 else ("",):
            words = given(BASES[base], action, value)
            out, err = io.StringIO(), io.StringIO()
            shown = " ".join(word[:40] for word in words)
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    status = status_of(words)
            except BaseException as error:
                wrong.append(f"{shown}\n    {type(error).__name__}: {str(error)[:150]}")
                continue
            finally:
                for path in tiny.iterdir():
                    if path.name not in before:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
            # Two errors have a list below their line: what data is, and what takes the memory.
            told = err.getvalue().strip()
            lines = told.splitlines()
            listed = "Understood are:" in told or "the floor for this plan" in told
            if status == 2 and (
                out.getvalue()
                or not told.startswith(f"staticgraph {words[0]}: ")
                or (len(lines) > 1 and not listed)
            ):
                wrong.append(f"{shown}\n    {len(lines)} lines: {told[:500]}")
            elif status not in (0, 1, 2):
                wrong.append(f"{shown}\n    status {status}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--data", "few", "--seed", "-1"], "argument --seed: '-1': give a whole number"),
        (["train", "--data", "few", "--dropout", "2"], "argument --dropout: '2': give a number"),
        (["train", "--data", "few", "--workers", "-1"], "give a whole number from 0 to 256"),
        (["train", "--data", "few", "--device", "bogus"], "give cpu, cuda, cuda:1"),
        (["train", "--data", "few", "--epochs", "0"], "give a whole number from 1"),
        (["train", "--data", "few", "--lr", "nan"], "'nan': give a number above 0 to 1e+30"),
        (["train", "--data", "empty.npz"], "empty.npz is not an .npz of plain arrays"),
        ([*BASES["train-large link"], "--epochs", "0"], "argument --epochs: '0'"),
        ([*BASES["train-large link"], "--partitions", "0"], "argument --partitions: '0'"),
        ([*BASES["train-large link"], "--memory", "0"], "must be at least 1 byte"),
        ([*BASES["train-large link"], "--data", "empty.npz"], "empty.npz is no .npz of plain"),
        (["partition", "--edges", "noise.npy", "--nodes", "3", "--out", "g"], "noise.npy is no"),
        (["plan", "--histogram", "sizes.csv", "--graphs", "0"], "argument --graphs: '0'"),
        (["plan", "--histogram", "header.csv"], "header.csv has no rows below its header"),
        (["plan", "--histogram", "sizes.csv", "--out", "no/plan.json"], "there is no folder no"),
        (["check", "--data", "few", "--model", "tiny_models:models"], "models is a module; name"),
    ],
)
def test_the_line_names_option_value_and_range(words, message, tiny, capsys):
    assert status_of(words) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert len(err.splitlines()) == 1
    assert not out


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (BASES["train-large link"], "--memory"),
        (["plan", "--data", "few"], "--max-memory"),
        (["probe", "--data", "few"], "--max-memory"),
    ],
)
def test_every_option_of_memory_reads_the_same_sizes(words, option, capsys):
    """And names the units where it is given none."""
    assert status_of([*words, option, "3 parsecs"]) == 2
    assert "'3 parsecs' is no amount of memory: write a number" in capsys.readouterr().err
    parsed = []
    for size in ("512M", "512MiB", "536870912"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("staticgraph.cli.train_large.run", lambda args: parsed.append(args) or 0)
            patch.setattr("staticgraph.cli.plan.run", lambda args: parsed.append(args) or 0)
            patch.setattr("staticgraph.cli.probe.run", lambda args: parsed.append(args) or 0)
            assert status_of([*words, option, size]) == 0
    assert [getattr(p, option[2:].replace("-", "_")) for p in parsed] == [512 << 20] * 3


def test_a_byte_order_mark_changes_nothing(tiny, capsys):
    shown = []
    for name in ("sizes.csv", "bom.csv"):
        assert status_of(["plan", "--histogram", name, "--limits", "9", "20"]) == 0
        shown.append(capsys.readouterr().out.splitlines()[-1])
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (values.whole(0), "0", 0),
        (values.whole(0), " 7 ", 7),
        (values.number(0, 1, more=True), "1", 1.0),
        (values.share, "0", 0.0),
        (values.share, "1", 1.0),
        (values.rate, "1e30", 1e30),
        (values.seed, str(2**63 - 1), 2**63 - 1),
        (values.byte_size, "1.5K", 1536),
        (values.byte_size, "512m", 512 << 20),
        (values.byte_size, "20GiB", 20 << 30),
        (values.fanouts, "10,5", [10, 5]),
        (values.auto_or(values.whole()), "auto", "auto"),
        (values.auto_or(values.whole()), "4", 4),
        (values.device, "cuda:1", "cuda:1"),
    ],
)
def test_what_is_in_range_is_taken(kind, text, expected):
    assert kind(text) == expected
