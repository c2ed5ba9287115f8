"""The checks of a command before it imports torch and PyG, which takes seconds.

Errors that can be found without them, such as conflicting options or a missing file, are raised
first.
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
    """Imports torch and PyG if they are not loaded, with a message to stderr from rank 0."""
    if "torch_geometric" in sys.modules:
        return
    if os.environ.get("RANK", "0") == "0":
        say("loading torch and PyG")
    collects = gc.isenabled()
    gc.disable()  # garbage collection took a tenth of the import time
    try:
        import torch_geometric.nn  # noqa: F401, imports torch
    finally:
        if collects:
            gc.enable()


def look_for_graph(data: str) -> None:
    """Refuses a missing file of one large graph, then loads torch and PyG.

    Args:
        data: a file, or a name that :mod:`staticgraph.outofcore` knows.

    Raises:
        FileNotFoundError: ``data`` ends in ``.npz`` and does not exist.
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
    """Checks the names of data, model and loss before any data is read, and loads torch and PyG if
    they are needed.

    Args:
        data: the value of ``--data``.
        target: the value of ``--target``.
        model: the value of ``--model``; None if no model is run, so that torch is loaded only for
            data that PyG reads.
        loss: the value of ``--loss``, if given.

    Raises:
        UnknownDataset, FileNotFoundError, ValueError: as for :func:`staticgraph.datasets.open`.
        ValueError: the name of the model or the loss is not that of a suitable function.
    """
    from staticgraph.datasets import specs

    specs.check(data, target=target)
    look_for_modules(model, loss)
    if model or specs.by_pyg(data):
        load()
    look_at_names(model, loss)


def look_for_modules(model: str | None, loss: str | None = None) -> None:
    """Refuses names of missing modules, without importing any.

    Raises:
        ValueError: as for :func:`staticgraph.files.named_module.require_module`.
    """
    for spec, option in ((model, "--model"), (loss, "--loss")):
        if spec and (option == "--loss" or ":" in spec):
            require_module(spec, option)


def look_at_names(model: str | None, loss: str | None = None) -> None:
    """Imports the model's builder and the loss, and refuses them if they cannot be called as such.

    Raises:
        ValueError: as for :func:`staticgraph.models.named.builder_of` and
            :func:`staticgraph.training.task_loss.named_loss`.
    """
    if model and ":" in model:
        from staticgraph.models.named import builder_of

        builder_of(model)
    if loss:
        from staticgraph.training.task_loss import named_loss

        named_loss(loss)
