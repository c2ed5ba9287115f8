"""A training run in one file, from which it continues as if it had never stopped.

The file holds everything that decides the next step: parameters and buffers, the optimizer, where
the loader stands within its epoch, and the states of the random generators. It is written beside
its place and moved there whole, so that a run killed while it writes still has the file before.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from staticgraph.errors import CheckpointCorrupt

FORMAT = "staticgraph.checkpoint"
VERSION = 1
FILE = "checkpoint.pt"


def save(folder: Path, **state: Any) -> Path:
    """Writes ``folder/checkpoint.pt`` with ``state`` and the present random states."""
    path = folder / FILE
    content = {"format": FORMAT, "version": VERSION, "random": random_state(), **state}
    scratch = path.with_suffix(".tmp")
    torch.save(content, scratch)
    os.replace(scratch, path)
    return path


def load(folder: Path) -> dict[str, Any]:
    """Reads what :func:`save` wrote, on the CPU; random states are put back by the caller.

    Raises:
        FileNotFoundError: there is none.
        CheckpointCorrupt: the file is cut short, or of another format or version.
    """
    path = folder / FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} has no {FILE}, so there is no run to resume: leave --resume out to begin one"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever the bytes happen to lead to
        reason = type(error).__name__
        raise CheckpointCorrupt(f"{path} cannot be read ({reason}): begin anew") from error
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise CheckpointCorrupt(
            f"{path} says {content.get('format')} version {content.get('version')}; this library "
            f"reads {FORMAT} version {VERSION}: begin anew"
        )
    return content


def random_state() -> dict[str, Any]:
    """The states of torch's generators, on the CPU and on every CUDA device."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any]) -> None:
    """Puts back what :func:`random_state` gave; devices that are not here are left out."""
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
