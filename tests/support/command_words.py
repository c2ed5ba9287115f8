"""Inputs for tests of the command line's options, and a check of the outcome.

The inputs are tiny data, files whose content does not match their names, a base command line per
command, and absurd values. Training steps, measurements and pictures can be cut short, since the
tests of the commands run them.
"""

from __future__ import annotations

import contextlib
import functools
import io
from pathlib import Path

import numpy as np
import pytest
from cyclopts.argument import Argument
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph.checking.check import check
from staticgraph.cli.plan_report import map_around
from staticgraph.cli.probe import MeasuredStep, ProbeOptions, measure
from staticgraph.dryrun import operations
from staticgraph.dryrun.operations import count_step
from staticgraph.dryrun.report import PARTS
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.serving.service import service_of_run
from staticgraph.training.build_run import open_step
from staticgraph.training.report import TrainReport
from staticgraph.training.run import Training
from staticgraph.training.versus.comparison import compare
from support.command import status_of

GIN = ["--model", "gin", "--hidden", "4", "--layers", "1"]
LINK = ["--epochs", "1", "--batch-size", "10", "--chunks", "2", "--negatives", "4", "--dimension",
        "4", "--policy", "in-memory"]  # fmt: skip
# The arguments of each command besides the tested option; names are those of the folder below.
BASES = {
    "plan histogram": ["plan", "--histogram", "sizes.csv", "--graphs", "4"],
    "plan limits": ["plan", "--histogram", "sizes.csv", "--limits", "9", "20", "--max-graphs", "4"],
    "plan data": ["plan", "--data", "few", "--batch-size", "4"],
    "plan memory": ["plan", "--data", "few", *GIN, "--max-memory", "1GiB", "--min-steps", "1"],
    "probe": ["probe", "--data", "few", *GIN],
    "check": ["check", "--data", "few", "--model", "tiny_models:build", "--batch-size", "4"],
    "train": ["train", "--data", "few", *GIN, "--batch-size", "4", "--epochs", "1", "--out", "r"],
    "try": ["try", "--data", "few", *GIN, "--batch-size", "4", "--modes", "eager", "--seconds", "1",
            "--out", "tried"],
    "report": ["report", "run"],
    "predict": ["predict", "--run", "run", "--data", "few", "--out", "p.csv"],
    "serve": ["serve", "--run", "run", "--port", "0", "--compile-mode", "eager"],
    "bench": ["bench", "--data", "few", *GIN, "--batch-size", "2"],
    "convert": ["convert", "--data", "few", "--out", "converted"],
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
# Commands whose exit status may be 1: a training diverged, or a model is not static.
ANSWERS_NO = ("train", "train-large", "check", "try")


def make_place(folder: Path, graphs: list[Data]) -> None:
    """Puts a tiny data set of every kind into a folder, and files that do not match their names.

    Args:
        folder: an existing folder.
        graphs: twenty graphs with labels.
    """
    sg.GraphStore.from_pyg(graphs, name="few").with_splits(
        train=range(12), val=range(12, 16), test=range(16, 20)
    ).save(folder / "few")
    (folder / "sizes.csv").write_text("num_nodes,num_edges,count\n3,4,5\n5,8,2\n")
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 12, (2, 40))
    np.save(folder / "edges.npy", edges)
    once, nodes = np.unique(np.sort(edges[:, edges[0] != edges[1]], 0), axis=1), np.arange(12)
    np.savez(folder / "graph.npz", edges=once, num_nodes=12, label=nodes % 2, train=nodes[:6],
             val=nodes[6:9], test=nodes[9:], x_indptr=np.arange(13), x_indices=nodes,
             x_shape=[12, 12])  # fmt: skip
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


def measured_in(place: Path) -> MemoryModel:
    """Returns a memory model as ``probe`` makes it, and trains into the folder ``run``."""
    step = MeasuredStep(str(place / "few"), model="gin", hidden=4, layers=1)
    words = [*BASES["train"][:-1], str(place / "run"), "--compile-mode", "eager"]
    words[words.index("few")] = str(place / "few")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert status_of(words) == 0
    return measure(open_step(step), step, ProbeOptions(like="cuda"))


def cut_short(patch: pytest.MonkeyPatch, folder: Path, measured: MemoryModel) -> None:
    """Leaves out loops, measurements and pictures.

    Files are still opened, models and plans built, and folders made.
    """

    def trained(training: Training) -> TrainReport:
        training.folder.mkdir(exist_ok=True)
        training.plan.save(training.folder / "plan.json")
        len(training.loader)
        return TrainReport.load(folder / "run")

    def probed(model, store, **options):
        return measured

    def nothing(*arguments, **options):
        return ""

    first = {}

    def once(work):
        """Returns ``work`` with the result of its first call cached."""

        def done(*arguments, **options):
            if work not in first:
                first[work] = work(*arguments, **options)
            return first[work]

        return done

    def served(server, sockets) -> None:
        server.started = True

    def launched(model, plan, target, kernels, dtype=None):
        name = operations.KERNELS if kernels else operations.STOCK
        return operations.BaselineColumn(
            name, "launches", dict.fromkeys(PARTS, 1)
        ), f"as on {target}"

    for path, stand_in in {
        # Once per run and options; these do not include its address.
        "staticgraph.serving.service.service_of_run": functools.cache(service_of_run),
        "uvicorn.Server.run": served,
        "uvicorn.supervisors.Multiprocess.run": nothing,
        "staticgraph.training.run.Training.run": trained,
        "staticgraph.probing.probe.probe": probed,
        "staticgraph.dryrun.operations.launched": launched,
        "staticgraph.dryrun.operations.count_step": once(count_step),
        "staticgraph.cli.plan_report.map_around": once(map_around),
        "staticgraph.checking.check.check": once(check),
        "staticgraph.training.versus.comparison.compare": once(compare),
        "staticgraph.training.plots.save_picture": nothing,
        "staticgraph.cli.report.page_of": nothing,
    }.items():
        patch.setattr(path, stand_in)


def replace_option(base: list[str], option: Argument, value: str) -> list[str]:
    """Returns the words of a command with an option's value replaced by another."""
    if not option.name.startswith("-"):
        return [base[0], value]
    name = option.name
    words, place = [], 0
    while place < len(base):
        if base[place] == name:
            place += 1
            while place < len(base) and not base[place].startswith("--"):
                place += 1
            continue
        words.append(base[place])
        place += 1
    if option.hint is bool:
        return [*words, name]
    if option.parameter.consume_multiple:
        most = option.parameter.consume_multiple[1]
        return [*words, name, *([value] * (most or 2))]
    return [*words, f"{name}={value}"]


# The beginning of lines that a command prints before it checks its input.
PROGRESS = ("opening ", "loading ", "choosing ", "counting ", "measuring ", "packing",
            "searching ", "drawing", "cutting ", "ranking ", "evaluating ", "running ", "looking ",
            "predicting", "compiling ", "serving ")  # fmt: skip


def wrong_with(words: list[str]) -> str:
    """Returns what a command does wrong; empty if it works or refuses in one line.

    Args:
        words: the words of the command line; it runs in this process and the current folder.
    """
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = status_of(words)
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    # Two errors have a list below their line: the accepted data, and what takes the memory.
    lines = [line for line in err.getvalue().strip().splitlines() if not line.startswith(PROGRESS)]
    text = "\n".join(lines)
    listed = "Understood are:" in text or "the floor for this plan" in text
    if status == 2 and (
        out.getvalue()
        # The second is uvicorn's message for an address that it cannot listen on.
        or not text.startswith((f"staticgraph {words[0]}: ", "ERROR:    [Errno "))
        or (len(lines) > 1 and not listed)
    ):
        return f"{len(lines)} lines: {text[:500]}"
    known = status in (0, 2) or (status == 1 and words[0] in ANSWERS_NO)
    return "" if known else f"status {status}"
