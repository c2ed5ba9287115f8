"""Small models trained on molecules, as the train command leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from staticgraph.training.config import TrainConfig
from staticgraph.training.report import TrainReport, read_steps
from staticgraph.training.train import train
from support.examples import EXAMPLES

SMALL = {"model": "gin", "hidden": 8, "layers": 1, "batch_size": 16, "compile_mode": "eager"}


def trained_run(folder: Path) -> Path:
    """Trains over ESOL and returns the folder of the run."""
    config = TrainConfig(
        data=str(EXAMPLES / "esol.npz"), hidden=8, layers=1, epochs=1, compile_mode="eager"
    )
    train(config, folder, progress=False)
    return folder


def trained(data: str, folder: Path, **settings: Any) -> TrainReport:
    """Trains a GIN on a data set, by default in batches of 16 without compiling it."""
    return train(TrainConfig(data, **{**SMALL, **settings}), folder, progress=False)


def losses_of(folder: Path) -> list[float]:
    """Returns the loss of each step of a run."""
    return [step.loss for step in read_steps(folder / "steps.csv")]
