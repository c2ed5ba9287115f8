"""Small models trained on molecules, as the train command leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from staticgraph.training import checkpoint
from staticgraph.training.config import TrainConfig
from staticgraph.training.report import TrainReport, read_steps
from staticgraph.training.train import train
from support.alike import same

SMALL = {"model": "gin", "hidden": 8, "layers": 1, "batch_size": 16, "compile_mode": "eager"}


def trained(data: str, folder: Path, **settings: Any) -> TrainReport:
    """Trains a GIN on a data set, by default in batches of 16 without compiling it."""
    return train(TrainConfig(data, **{**SMALL, **settings}), folder, progress=False)


def losses_of(folder: Path) -> list[float]:
    """Returns the loss of each step of a run."""
    return [step.loss for step in read_steps(folder / "steps.csv")]


def assert_same_run(folder: Path, other: Path) -> None:
    """Two folders have the same steps, weights and measurements, but for times."""
    assert read_steps(folder / "steps.csv") == read_steps(other / "steps.csv")
    actual, expected = (checkpoint.load(path)["model"] for path in (folder, other))
    assert same(actual, expected)
    ours, theirs = TrainReport.load(folder), TrainReport.load(other)
    timeless = [[e._replace(seconds=0) for e in report.epochs] for report in (ours, theirs)]
    assert timeless[0] == timeless[1]
    assert ours.test_metric == theirs.test_metric
