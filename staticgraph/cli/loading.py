"""From options to data, model and loss; everything that can be refused early is refused first.

Importing torch and PyG takes seconds. Errors that can be found without them, such as conflicting
options or a missing file, are raised before.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from staticgraph.cli.failures import USER_CODE
from staticgraph.files.named_module import require_module
from staticgraph.steps.compilation.modes import CUDA_MODES
from staticgraph.text.progress import waiting
from staticgraph.training.config import SIZES, named_in, require_run
from staticgraph.training.options import MODELS, DataOptions

# The names of the options that were given, on the command line or in a settings file.
OPTIONS_SET: set[str] = set()


class UsageError(Exception):
    """Options that do not go together; the message says what to give instead."""


def load() -> None:
    """Imports torch and PyG if they are not loaded, with messages to stderr from rank 0."""
    if "torch_geometric" in sys.modules:
        return
    collects = gc.isenabled()
    gc.disable()  # collections took a fifth of the import time
    try:
        with waiting("loading torch and PyG", os.environ.get("RANK", "0") == "0"):
            import torch_geometric.nn  # noqa: F401
    finally:
        if collects:
            gc.enable()


def require_graph(data: str) -> None:
    """Refuses a missing ``.npz`` file of one large graph, then loads torch and PyG.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if data.endswith(".npz") and not Path(data).expanduser().exists():
        raise FileNotFoundError(f"{data}: there is no such file (looked in {Path.cwd()})")
    load()


def require_names(options: DataOptions, model: str | None = None, loss: str | None = None) -> None:
    """Checks the names of data, model and loss before any data is read, and loads torch and PyG if
    a model is run, or PyG reads the data.

    Raises:
        UnknownDataset, FileNotFoundError, ValueError: as for :func:`staticgraph.datasets.open`.
        UsageError, ValueError: as for :func:`require_code`.
    """
    from staticgraph.datasets import specs

    specs.check(options.data, target=options.target)
    if model:
        require_code(model, loss)
    elif specs.by_pyg(options.data):
        load()


def require_code(model: str | None, loss: str | None = None) -> None:
    """Notes the code that the names of a model and a loss stand for, refuses missing modules, and
    loads torch and PyG.

    Raises:
        UsageError: sizes of the zoo are given for a ``module:build`` model.
        ValueError: as for :func:`staticgraph.files.named_module.require_module`.
    """
    names = {"--model": model, "--loss": loss}
    USER_CODE.update({option: name for option, name in names.items() if name and ":" in name})
    for size in SIZES if "--model" in USER_CODE else ():
        if size in OPTIONS_SET:
            raise UsageError(
                f"--{size} is of the models {', '.join(MODELS)}; {model} builds its own: "
                f"leave --{size} out"
            )
    for option, spec in USER_CODE.items():
        require_module(spec, option)
    load()


def require_trained(folder: Path, mode: str, device: str) -> None:
    """Refuses a folder without a trained model, and a mode that the device does not have; loads
    torch and PyG.

    Raises:
        FileNotFoundError, ValueError, UsageError: as for
            :func:`staticgraph.training.config.require_run`, :func:`require_code` and
            :func:`check_mode`.
    """
    require_run(folder, trained=True)
    require_code(named_in(folder))
    check_mode(mode, device)


def check_mode(mode: str, device: str, allow_cpu: bool | None = None) -> None:
    """Refuses a mode that records CUDA graphs on a CPU, unless it may run without recording;
    ``allow_cpu`` is None if the command has no such option.

    Raises:
        UsageError: with the modes that a CPU runs.
    """
    from staticgraph.training.job import device_of

    if mode not in CUDA_MODES or allow_cpu or device_of(device).type == "cuda":
        return
    others = "fused, default, eager or auto"
    if mode == "max-autotune":
        others = f"max-autotune-no-cudagraphs, {others}"
    anyhow = "" if allow_cpu is None else "; --allow-cpu runs it all the same, and records nothing"
    raise UsageError(
        f"argument --compile-mode: {mode} records CUDA graphs, and this runs on a CPU: give "
        f"{others}{anyhow}"
    )
