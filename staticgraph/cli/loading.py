"""What a command says before it imports torch and PyG, which takes seconds and says nothing.

What can be refused without them is refused first: options that do not go together, a file that is
not there.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from staticgraph.text.progress import say


def load() -> None:
    """Imports torch and PyG, with a line to stderr of a job's first process; nothing where they are
    loaded."""
    if "torch_geometric" in sys.modules:
        return
    if os.environ.get("RANK", "0") == "0":
        say("loading torch and PyG")
    collects = gc.isenabled()
    gc.disable()  # a tenth of the time went into looking for garbage among modules
    try:
        import torch_geometric.nn  # noqa: F401, it imports torch
    finally:
        if collects:
            gc.enable()


def look_for_graph(data: str) -> None:
    """Refuses the file of one large graph that is not there, then loads torch and PyG.

    Args:
        data: a file, or a name that :mod:`staticgraph.outofcore` knows.

    Raises:
        FileNotFoundError: it ends in ``.npz`` and is not there.
    """
    if data.endswith(".npz") and not Path(data).expanduser().exists():
        raise FileNotFoundError(f"{data}: there is no such file (looked in {Path.cwd()})")
    load()


def look_for(data: str, target: Sequence[str] | None = None, *, model: bool = True) -> None:
    """Refuses a data set that is not there, then loads torch and PyG.

    Args:
        data: what ``--data`` names.
        target: what ``--target`` names.
        model: whether a model is run; else torch is loaded for data that PyG reads alone.

    Raises:
        UnknownDataset, FileNotFoundError, ValueError: as :func:`staticgraph.datasets.open`.
    """
    from staticgraph.datasets import specs

    specs.check(data, target=target)
    if model or specs.by_pyg(data):
        load()
