"""A small model, trained for an epoch on molecules, as the train command leaves it."""

from __future__ import annotations

from pathlib import Path

from staticgraph.training.config import TrainConfig
from staticgraph.training.train import train
from support.examples import EXAMPLES


def trained_run(folder: Path) -> Path:
    """Trains over ESOL and returns the folder of the run."""
    config = TrainConfig(
        data=str(EXAMPLES / "esol.npz"), hidden=8, layers=1, epochs=1, compile_mode="eager"
    )
    train(config, folder, progress=False)
    return folder
