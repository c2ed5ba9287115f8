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

from staticgraph.files.named_module import require_module
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


def look_for(
    data: str,
    target: Sequence[str] | None = None,
    *,
    model: str | None = None,
    loss: str | None = None,
) -> None:
    """Refuses a data set that is not there, loads torch and PyG where they are needed, and refuses
    a model or a loss whose name leads nowhere: before any data is read.

    Args:
        data: what ``--data`` names.
        target: what ``--target`` names.
        model: what ``--model`` names; None where no model is run, and torch is loaded for data that
            PyG reads alone.
        loss: what ``--loss`` names, if anything.

    Raises:
        UnknownDataset, FileNotFoundError, ValueError: as :func:`staticgraph.datasets.open`.
        ValueError: model or loss name nothing that can be called as one.
    """
    from staticgraph.datasets import specs

    specs.check(data, target=target)
    look_for_modules(model, loss)
    if model or specs.by_pyg(data):
        load()
    look_at_names(model, loss)


def look_for_modules(model: str | None, loss: str | None = None) -> None:
    """Refuses names of modules that are not there, without importing any.

    Raises:
        ValueError: as :func:`staticgraph.files.named_module.require_module`.
    """
    for spec, option in ((model, "--model"), (loss, "--loss")):
        if spec and (option == "--loss" or ":" in spec):
            require_module(spec, option)


def look_at_names(model: str | None, loss: str | None = None) -> None:
    """Imports what model and loss name, and refuses what cannot be called as one.

    Raises:
        ValueError: as :func:`staticgraph.models.named.builder_of` and
            :func:`staticgraph.training.task_loss.named_loss`.
    """
    if model and ":" in model:
        from staticgraph.models.named import builder_of

        builder_of(model)
    if loss:
        from staticgraph.training.task_loss import named_loss

        named_loss(loss)
