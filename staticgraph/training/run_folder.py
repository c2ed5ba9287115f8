"""Checks of a run's folder before anything is loaded: whether a run can start or resume there."""

from __future__ import annotations

import tomllib
from pathlib import Path

# The checkpoint that a run resumes from, and the settings that it was started with.
CHECKPOINT, CONFIG = "checkpoint.pt", "config.toml"


def require_free(folder: Path) -> None:
    """Checks that a new run can start in the folder.

    Raises:
        FileExistsError: the folder already holds a run.
    """
    if (folder / CHECKPOINT).exists():
        raise FileExistsError(
            f"{folder} holds a run already: continue it with --resume, replace it with "
            "--overwrite, or choose another --out"
        )


def require_trained(folder: Path) -> None:
    """Checks that the folder has a trained model.

    Raises:
        FileNotFoundError: no model was trained there.
    """
    if not (folder / CHECKPOINT).exists():
        raise FileNotFoundError(
            f"{folder} has no {CHECKPOINT}: train a model there first, with staticgraph train "
            f"--data SPEC --out {folder}"
        )


def require_run(folder: Path) -> None:
    """Checks that the folder has a run to resume.

    Raises:
        FileNotFoundError: there is no run.
    """
    if not (folder / CHECKPOINT).exists():
        raise FileNotFoundError(
            f"{folder} has no {CHECKPOINT}, so there is no run to resume: leave --resume out to "
            "begin one"
        )


def named_in(folder: Path, setting: str = "model") -> str | None:
    """The name of a run's model, or of its loss, from its settings, for messages; None if they name
    none or cannot be read."""
    try:
        name = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8")).get(setting)
    except (OSError, ValueError):  # only the checkpoint is needed to resume a run
        return None
    return name if isinstance(name, str) else None
