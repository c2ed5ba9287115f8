"""Training by name: from the names of a data set and a model to a folder with the trained model.

This is what ``staticgraph train`` runs. The invariant: a run is one sequence of steps, however
often it is interrupted. A checkpoint holds everything that determines the next step, so the losses
after ``resume`` equal those of a run that never stopped (bit for bit on a CPU with the same number
of threads).

The folder gets ``checkpoint.pt``, ``config.toml``, ``plan.json``, ``steps.csv``, ``report.json``,
``report.png`` and TensorBoard's event files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from staticgraph.distributed.ranks import Ranks
from staticgraph.text.how_many import how_many
from staticgraph.training import checkpoint
from staticgraph.training.config import (
    CHECKPOINT,
    CHOICES,
    FREE,
    NEED_THE_END,
    PAGE,
    PICTURE,
    REPORT,
    STEPS,
    TrainConfig,
    require_free,
)
from staticgraph.training.job import Interrupted, first_alone, joined
from staticgraph.training.report import TrainReport
from staticgraph.training.run import Training

__all__ = ["Interrupted", "TrainConfig", "resume", "train"]


def train(
    config: TrainConfig, folder: str | Path, *, overwrite: bool = False, progress: bool = True
) -> TrainReport:
    """Trains a new run and returns its report.

    Args:
        config: the settings.
        folder: the folder for the run's files; created if needed.
        overwrite: replace a run that is in the folder.
        progress: report progress on stderr, with a bar.

    Raises:
        FileExistsError: the folder already holds a run.
        DatasetUnavailable: the data cannot be obtained.
        MissingPackage: a package that reads the data set is not installed.
        BadGraph: the data has no target that defines a task.
        Diverged: the loss ceased to be finite; report, steps and plot are in the folder.
        FolderInUse: another process trains in the folder.
        Interrupted: the run was stopped by Ctrl-C or SIGTERM; it can be resumed.
    """
    folder = Path(folder).expanduser()
    # After a failure, torchrun starts a job again.
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    with joined(folder) as ranks:
        if ranks.from_first(restarted and (folder / CHECKPOINT).exists()):
            return _resume(folder, {}, progress, ranks)
        if not overwrite:
            first_alone(ranks, lambda: require_free(folder))
        training = Training(config, folder, progress, ranks=ranks)
        first_alone(ranks, lambda: _clear(folder))
        return training.run()


def _clear(folder: Path) -> None:
    results = (CHECKPOINT, CHOICES, REPORT, STEPS, PICTURE, PAGE)
    for pattern in (*results, "events.out.tfevents.*"):
        for old in folder.glob(pattern):
            old.unlink()


def resume(
    folder: str | Path, changes: Mapping[str, Any] | None = None, *, progress: bool = True
) -> TrainReport:
    """Continues a run from its last checkpoint, with its original settings; returns its report.

    Args:
        folder: the folder of the run.
        changes: settings to change; only those in :data:`FREE` may differ from before.
        progress: report progress on stderr, with a bar.

    Raises:
        FileNotFoundError: there is no run.
        CheckpointCorrupt: the checkpoint is damaged, or of another version or model.
        ValueError: a changed setting affects what the run computes, or the data is not the data
            that the run was started with.
        Diverged: the loss ceased to be finite; report, steps and plot are in the folder.
        FolderInUse: another process trains in the folder.
        Interrupted: the run was stopped by Ctrl-C or SIGTERM; it can be resumed.
    """
    folder = Path(folder).expanduser()
    with joined(folder) as ranks:
        return _resume(folder, changes or {}, progress, ranks)


def _resume(folder: Path, changes: Mapping[str, Any], progress: bool, ranks: Ranks) -> TrainReport:
    state = ranks.from_first(first_alone(ranks, lambda: checkpoint.load(folder)))
    config = TrainConfig(**state["config"])
    changed = replace(config, **changes)
    for name in changes:
        was, value = getattr(config, name), getattr(changed, name)
        if name not in FREE and value != was:
            raise ValueError(
                f"the run in {folder} was begun with {name}={was!r} and cannot go on with "
                f"{value!r}: leave it out to resume, or begin another run"
            )
    if changed.epochs != config.epochs and config.schedule in NEED_THE_END:
        raise ValueError(
            f"the run in {folder} was begun with schedule={config.schedule!r} over "
            f"{how_many(config.epochs, 'epoch')}, which ends with them: leave --epochs out to "
            "resume, or begin another run"
        )
    begun = state["loader"]["epoch"] + (state["loader"]["position"] > 0)
    if changed.epochs < begun:
        raise ValueError(
            f"the run in {folder} is in its epoch {begun}, and --epochs {changed.epochs} counts "
            "those before a resume: give as many at least, or begin another run"
        )
    return Training(changed, folder, progress, state, ranks).run()
