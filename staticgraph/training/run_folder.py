"""A run's folder before anything is loaded: whether a run can begin there, or go on."""

from __future__ import annotations

import tomllib
from pathlib import Path

# What a run can go on from, and the settings that it was begun with.
CHECKPOINT, CONFIG = "checkpoint.pt", "config.toml"


def require_free(folder: Path) -> None:
    """For a run that begins.

    Raises:
        FileExistsError: a run is there.
    """
    if (folder / CHECKPOINT).exists():
        raise FileExistsError(
            f"{folder} holds a run already: continue it with --resume, replace it with "
            "--overwrite, or choose another --out"
        )


def require_trained(folder: Path) -> None:
    """For a model that is used.

    Raises:
        FileNotFoundError: none was trained there.
    """
    if not (folder / CHECKPOINT).exists():
        raise FileNotFoundError(
            f"{folder} has no {CHECKPOINT}: train a model there first, with staticgraph train "
            f"--data SPEC --out {folder}"
        )


def require_run(folder: Path) -> None:
    """For a run that goes on.

    Raises:
        FileNotFoundError: none is there.
    """
    if not (folder / CHECKPOINT).exists():
        raise FileNotFoundError(
            f"{folder} has no {CHECKPOINT}, so there is no run to resume: leave --resume out to "
            "begin one"
        )


def named_in(folder: Path, setting: str = "model") -> str | None:
    """The model of a run, or its loss, for messages: what its settings name; None where they name
    none or cannot be read."""
    try:
        name = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8")).get(setting)
    except (OSError, ValueError):  # a run goes on by its checkpoint alone
        return None
    return name if isinstance(name, str) else None
