"""Training by name: it learns, counts every graph, and a stop and a resume change nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.alike import same
from support.few_molecules import few_molecules
from support.patience import patience
from support.program import run_program
from support.trained_run import assert_same_run

import staticgraph as sg
from staticgraph.errors import CheckpointCorrupt
from staticgraph.text.how_many import how_many
from staticgraph.training import checkpoint, train
from staticgraph.training.config import TrainConfig
from staticgraph.training.job import Interrupt
from staticgraph.training.report import TrainReport, read_steps

# Entries that every checkpoint has, whatever the run.
CHECKPOINTS_OWN = ("format", "version", "random")


@pytest.fixture(scope="module")
def molecules(tmp_path_factory, esol) -> Path:
    """200 molecules of ESOL as a store with a split: 160 to train, 11 batches of 15 per epoch."""
    return few_molecules(esol, 200, tmp_path_factory, split=True)


@pytest.fixture(scope="module")
def config(molecules) -> TrainConfig:
    """With dropout, so that a lost random state shows."""
    return TrainConfig(
        str(molecules),
        model="gps",
        hidden=8,
        layers=1,
        dropout=0.2,
        batch_size=15,
        epochs=2,
        lr=0.01,
        checkpoint_every=4,
        compile_mode="eager",  # two runs that choose by timing may differ in mode and rounding
    )


@pytest.fixture(scope="module")
def uninterrupted(config, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train.train(config, folder, progress=False)
    return folder


@pytest.fixture
def run(tmp_path) -> Path:
    return tmp_path / "run"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder)["model"]


# ---------------------------------------------------------------------- one run


def test_the_report_adds_up(uninterrupted):
    report = TrainReport.load(uninterrupted)
    steps = read_steps(uninterrupted / "steps.csv")
    assert report.task == "regression"
    for epoch in report.epochs:
        mine = [step for step in steps if step.epoch == epoch.epoch]
        mean = np.average([s.loss for s in mine], weights=[s.graphs for s in mine])
        assert epoch.train_loss == pytest.approx(mean)
        assert epoch.val_metric == pytest.approx(epoch.val_loss**0.5)
        assert epoch.graphs == 160
    assert report.epochs[1].train_loss < report.epochs[0].train_loss
    text = str(report)
    assert "val RMSE" in text
    assert "160 graphs to train, 20 to validate, 20 to test" in text
    assert "graphs filled" in text
    for name in report.files.values():
        assert (uninterrupted / name).exists()
    assert list(uninterrupted.glob("events.out.tfevents.*"))
    assert sg.BucketPlan.load(uninterrupted / "plan.json").batch_size == 15
    json.loads((uninterrupted / "report.json").read_text(), parse_constant=pytest.fail)


def test_graphs_on_the_device_change_no_result(uninterrupted, config, run):
    there = replace(config, store="device")
    report = train.train(there, run, progress=False)
    assert_same_run(run, uninterrupted)
    assert "on the device" in report.data["place"]
    assert "on the host" in TrainReport.load(uninterrupted).data["place"]
    with pytest.raises(ValueError, match="store='disk': give one of auto, host, device"):
        replace(config, store="disk")


# ---------------------------------------------------------------------- stopping and going on


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
import staticgraph as sg
from staticgraph.training import train
from staticgraph.training.config import TrainConfig

steps, step = 0, sg.StaticGraphRunner.step
def killing(self, batch):
    global steps
    steps += 1
    if steps == 17:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, batch)
sg.StaticGraphRunner.step = killing
train.train(TrainConfig(**eval(sys.argv[1])), sys.argv[2], progress=False)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(config, uninterrupted, run):
    """Killed in step 17 of 22, in the second epoch; the last checkpoint is after step 16."""
    settings = {name: getattr(config, name) for name in config.__dataclass_fields__}
    done = run_program(["-c", KILLED, repr(settings), str(run)], timeout=patience(60))
    assert done.returncode == -signal.SIGKILL
    state = checkpoint.load(run)
    assert len(state["steps"]) == 16
    assert (state["loader"]["epoch"], state["loader"]["position"]) == (1, 5)
    with pytest.raises(FileNotFoundError, match="no run has finished there; continue it with"):
        TrainReport.load(run)
    report = train.resume(run, progress=False)
    assert report.resumed_at == 16
    assert "the buckets count what came after step 16" in str(report)
    assert_same_run(run, uninterrupted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stop_at", [1, 6, 11])
def test_ctrl_c_stops_between_steps_and_goes_on(stop_at, config, uninterrupted, run, monkeypatch):
    taken, step = [], sg.StaticGraphRunner.step

    def pressing(self, batch):
        loss = step(self, batch)
        taken.append(loss)
        if len(taken) == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        return loss

    monkeypatch.setattr(sg.StaticGraphRunner, "step", pressing)
    steps = how_many(stop_at, "step")
    with pytest.raises(train.Interrupted, match=f"stopped after {steps}; continue with"):
        train.train(config, run, progress=False)
    assert len(checkpoint.load(run)["steps"]) == stop_at
    train.resume(run, progress=False)
    assert_same_run(run, uninterrupted)


def test_a_resumed_run_keeps_the_ways_that_were_chosen_by_time(config, run):
    """Another choice would round differently: the file is read, and nothing is measured again."""
    there = replace(config, compile_mode="auto", model="gin", epochs=1)
    train.train(there, run, progress=False)
    file = run / "choices.json"
    chosen = json.loads(file.read_text())
    assert {(c["bucket"], c["phase"]) for c in chosen["choices"]} >= {(0, "step"), (0, "eval")}
    before = file.stat().st_mtime_ns
    report = train.resume(run, {"epochs": 2}, progress=False)
    assert len(report.epochs) == 2
    assert file.stat().st_mtime_ns == before


def test_a_second_signal_stops_at_once():
    before = signal.getsignal(signal.SIGINT)  # a background job ignores it
    with pytest.raises(KeyboardInterrupt), Interrupt() as interrupt:  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.requested
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_more_epochs_continue_a_finished_run(config, uninterrupted, run):
    short = replace(config, epochs=1)
    train.train(short, run, progress=False)
    train.resume(run, {"epochs": 2, "workers": 1}, progress=False)
    assert_same_run(run, uninterrupted)


def test_what_decides_the_result_cannot_change(uninterrupted):
    with pytest.raises(ValueError, match="was begun with hidden=8 and cannot go on with 16: leave"):
        train.resume(uninterrupted, {"hidden": 16}, progress=False)
    with pytest.raises(ValueError, match="in its epoch 2, and --epochs 1 counts those before"):
        train.resume(uninterrupted, {"epochs": 1}, progress=False)


def test_a_run_is_not_overwritten_unasked(config, run):
    small = replace(config, model="gin", epochs=1)
    train.train(small, run, progress=False)
    before = weights(run)
    with pytest.raises(FileExistsError, match="holds a run already: continue it with --resume"):
        train.train(small, run, progress=False)
    train.train(replace(small, seed=1), run, overwrite=True, progress=False)
    after = weights(run)
    assert not same(before, after)
    assert len(list(run.glob("events.out.tfevents.*"))) == 1


# ---------------------------------------------------------------------- errors


def test_checkpoints_are_checked(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no run to resume: leave --resume out"):
        train.resume(tmp_path)
    checkpoint.save(tmp_path, version=0)
    with pytest.raises(CheckpointCorrupt, match="version 0; this library reads"):
        train.resume(tmp_path)


def test_any_changed_byte_of_a_checkpoint_is_refused(tmp_path):
    checkpoint.save(tmp_path, model={"w": torch.arange(40.0)}, steps=[(0, 1, 2)], plan={"a": "b"})
    path = tmp_path / checkpoint.CHECKPOINT
    whole = path.read_bytes()
    before = checkpoint.load(tmp_path)
    assert torch.equal(before["model"]["w"], torch.arange(40.0))
    assert before["steps"] == [(0, 1, 2)]
    for place in range(0, len(whole), max(1, len(whole) // 600)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(CheckpointCorrupt, match=r"checkpoint\.pt cannot be read"):
            checkpoint.load(tmp_path)
    for cut in range(0, len(whole), len(whole) // 50):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointCorrupt, match=r"\.pt cannot be read .*train --overwrite"):
            train.resume(tmp_path)


def test_a_run_does_not_go_on_with_other_labels(config, molecules, uninterrupted, tmp_path, run):
    """Sizes, and therefore the plan's digest, are the same; only the labels differ."""
    few = sg.GraphStore.load(molecules)
    shutil.copytree(uninterrupted, run)
    state = checkpoint.load(run)
    changed = tmp_path / "few"
    columns = {**few.columns, "y": few.columns["y"] + 1}
    replace(few, columns=columns).save(changed)
    state["config"]["data"] = str(changed)
    checkpoint.save(run, **{k: v for k, v in state.items() if k not in CHECKPOINTS_OWN})
    with pytest.raises(ValueError, match=r"begun with other data: .*labels.*begin another"):
        train.resume(run, progress=False)


@pytest.mark.usefixtures("painted")
def test_without_the_packages_that_draw_and_log_a_run_leaves_their_files_out(
    config, run, monkeypatch, capsys
):
    for package in ("matplotlib", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    train.train(replace(config, epochs=1), run, progress=False)
    written = {path.name for path in run.iterdir()}
    assert {"report.json", "steps.csv", "checkpoint.pt"} <= written
    assert not [name for name in written if name.endswith(".png") or "tfevents" in name]
    said = capsys.readouterr().err
    assert "report.png, since matplotlib is not installed (pip install matplotlib)" in said
    assert "TensorBoard's files, since tensorboard is not installed" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(config, run):
    with pytest.raises(ValueError, match=r"sees no CUDA device.*: leave device= out, or give"):
        train.train(replace(config, device="cuda"), run, progress=False)


def test_overwriting_forgets_the_choices_of_the_run_before(tmp_path):
    """They may have been the fastest for another plan; files that do not belong to a run stay."""
    for name in ("choices.json", "report.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    train._clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
