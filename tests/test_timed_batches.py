"""``workers="auto"``: the first steps are timed, and only the number of threads depends on it."""

from __future__ import annotations

import os

import pytest
import torch

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.training import train
from staticgraph.training.config import TrainConfig
from staticgraph.training.report import read_steps
from staticgraph.training.run import TIMED, WARM, timed

CPU = torch.device("cpu")


class Clock:
    """Stands still until it is advanced."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(fill_s: float, step_s: float, batches: int):
    """What ``timed`` derives from batches with these times, and how many batches it passed on."""
    clock, handed = Clock(), 0

    def filled():
        for number in range(batches):
            clock.now += 100 * fill_s if number < WARM else fill_s
            yield object()

    turns = timed(filled(), CPU, clock)
    while True:
        try:
            next(turns)
        except StopIteration as over:
            return over.value, handed
        handed += 1
        clock.now += step_s


@pytest.mark.parametrize(("fill_s", "step_s", "workers"), [(0.03, 0.0125, 3), (0.001, 0.01, 1)])
def test_warm_times_ask_for_workers(monkeypatch, fill_s, step_s, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    found, handed = run(fill_s, step_s, 1000)
    assert (found.num_workers, handed) == (workers, WARM + TIMED)
    assert f"{1e3 * fill_s:.2f} ms to make a batch, {1e3 * step_s:.2f} ms per step" in found.reason


def test_too_few_batches_tell_nothing():
    assert run(0.1, 0.1, WARM + TIMED - 1) == (None, WARM + TIMED - 1)


def test_a_run_finds_its_workers_and_has_the_same_losses(tmp_path, monkeypatch):
    monkeypatch.setattr("staticgraph.training.run.WARM", 1)
    monkeypatch.setattr("staticgraph.training.run.TIMED", 3)
    made = []
    stock = StaticLoader.__init__

    def noted(loader, *args, **kwargs):
        made.append(kwargs["num_workers"])
        stock(loader, *args, **kwargs)

    config = {"data": "examples/data/esol.npz", "model": "gin", "hidden": 4, "layers": 1}
    config |= {"batch_size": 32, "epochs": 1, "kernels": "off", "checkpoint_every": 3}
    config["compile_mode"] = "eager"  # modes chosen by timing may round differently
    train.train(TrainConfig(**config), tmp_path / "none")
    monkeypatch.setattr(StaticLoader, "__init__", noted)
    train.train(TrainConfig(**config, workers="auto"), tmp_path / "auto")
    assert made[0] == 0
    assert made[1] >= 1
    files = [tmp_path / run / "steps.csv" for run in ("none", "auto")]
    assert read_steps(files[0]) == read_steps(files[1])
    assert len(read_steps(files[0])) > 4


def test_what_is_no_number_of_workers_is_refused():
    with pytest.raises(ValueError, match=r"workers='many': give a whole number .*, or auto"):
        TrainConfig("x", workers="many")
