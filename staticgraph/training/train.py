"""Training by name: data, model and a few numbers in, a folder with the trained model out.

This is what ``staticgraph train`` runs, and an example of how the pieces meet: store, plan, loader
and runner, a few lines each. The invariant is that a run is one sequence of steps, however often it
was interrupted: a checkpoint holds everything that decides the next step, so that the losses after
``resume`` equal those of a run that never stopped (bit for bit on a CPU with as many threads).

The folder gets ``checkpoint.pt``, ``config.toml``, ``plan.json``, ``steps.csv``, ``report.json``,
``report.png`` and TensorBoard's event files.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from staticgraph.distributed.ranks import Ranks
from staticgraph.errors import MissingPackage
from staticgraph.files.folder_lock import folder_lock
from staticgraph.text.how_many import how_many
from staticgraph.training import checkpoint
from staticgraph.training.config import FREE, TrainConfig
from staticgraph.training.interrupt import Interrupted
from staticgraph.training.job import first_alone, joined, restarted
from staticgraph.training.report import FILE, PAGE, PICTURE, STEPS, TrainReport
from staticgraph.training.run import CHOICES, Training
from staticgraph.training.run_folder import require_free
from staticgraph.training.schedule import NEED_THE_END

__all__ = ["Interrupted", "TrainConfig", "resume", "train"]


def train(
    config: TrainConfig, folder: str | Path, *, overwrite: bool = False, progress: bool = True
) -> TrainReport:
    """Trains from the beginning.

    Args:
        config: the settings.
        folder: where the files go; made if need be.
        overwrite: begin again where a run is already.
        progress: say on stderr what is done, with a bar.

    Raises:
        FileExistsError: the folder holds a run.
        DatasetUnavailable: the data cannot be had.
        MissingPackage: one of the extra ``train``, or of the data set, is not installed.
        BadGraph: the data has no target that a task can be made of.
        Diverged: the loss ceased to be finite; report, steps and picture are in the folder.
        FolderInUse: another process trains into the folder.
        Interrupted: by Ctrl-C or SIGTERM; the run can be resumed.
    """
    folder = Path(folder).expanduser()
    _require_extra()
    with _job(folder) as ranks:
        there = first_alone(ranks, lambda: _begin(folder, overwrite))
        if there if ranks is None else ranks.from_first(there):
            return _resume(folder, {}, progress, ranks)
        training = Training(config, folder, progress, ranks=ranks)
        first_alone(ranks, lambda: _clear(folder))
        return training.run()


@contextmanager
def _job(folder: Path) -> Iterator[Ranks | None]:
    """The processes that train into a folder, which rank 0 holds."""
    with joined() as ranks:
        if ranks is not None and not ranks.first:
            first_alone(ranks, lambda: None)
            yield ranks
            return
        lock = folder_lock(folder)
        first_alone(ranks, lock.__enter__)
        try:
            yield ranks
        finally:
            lock.__exit__(None, None, None)


def _begin(folder: Path, overwrite: bool) -> bool:
    """Whether the run is there already and goes on, since its job was started again.

    Raises:
        FileExistsError: it is there, and nobody said what to do with it.
    """
    if restarted() and (folder / checkpoint.FILE).exists():
        return True
    if not overwrite:
        require_free(folder)
    return False


def _clear(folder: Path) -> None:
    for pattern in (checkpoint.FILE, CHOICES, FILE, STEPS, PICTURE, PAGE, "events.out.tfevents.*"):
        for old in folder.glob(pattern):
            old.unlink()


def resume(
    folder: str | Path, changes: Mapping[str, Any] | None = None, *, progress: bool = True
) -> TrainReport:
    """Continues a run after its last checkpoint, with the settings that it was begun with.

    Args:
        folder: of the run.
        changes: settings to change, of :data:`FREE`; any other must be as it was.
        progress: say on stderr what is done, with a bar.

    Raises:
        FileNotFoundError: there is no run.
        CheckpointCorrupt: the checkpoint is damaged, or of another version.
        ValueError: a setting was to change that decides what the run computes, or the data is not
            what the run was begun with.
        Diverged: the loss ceased to be finite; report, steps and picture are in the folder.
        FolderInUse: another process trains into the folder.
        Interrupted: by Ctrl-C or SIGTERM; the run can be resumed.
    """
    folder, changes = Path(folder).expanduser(), changes or {}
    _require_extra()
    with _job(folder) as ranks:
        return _resume(folder, changes, progress, ranks)


def _resume(
    folder: Path, changes: Mapping[str, Any], progress: bool, ranks: Ranks | None
) -> TrainReport:
    state = first_alone(ranks, lambda: checkpoint.load(folder))
    state = state if ranks is None else ranks.from_first(state)
    assert state is not None
    config = TrainConfig(**state["config"])
    asked = replace(config, **changes)
    for name in changes:
        was, value = getattr(config, name), getattr(asked, name)
        if name not in FREE and value != was:
            raise ValueError(
                f"the run in {folder} was begun with {name}={was!r} and cannot go on with "
                f"{value!r}: leave it out to resume, or begin another run"
            )
    ends = NEED_THE_END if changes.get("epochs", config.epochs) != config.epochs else ()
    if config.schedule in ends:
        raise ValueError(
            f"the run in {folder} was begun with schedule={config.schedule!r} over "
            f"{how_many(config.epochs, 'epoch')}, which ends with them: leave --epochs out to "
            "resume, or begin another run"
        )
    return Training(asked, folder, progress, state, ranks).run()


def _require_extra() -> None:
    """Says before an hour of training, not after, that a package is missing; loads the slow one."""
    for package in ("matplotlib", "tensorboard", "torchmetrics"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(
                f"training needs the package {package!r}, which is not installed: "
                "pip install 'staticgraph[train]'"
            )
    # Now, while the user waits for imports, and not in silence after the first epoch.
    importlib.import_module("torchmetrics.functional")
