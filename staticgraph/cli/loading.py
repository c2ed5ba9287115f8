"""From options to data, model and loss; everything that can be refused early is refused first.

Importing torch and PyG takes seconds. Errors that can be found without them, such as conflicting
options, a missing file or a mode that needs CUDA, are raised before.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticgraph.cli.failures import note_user_code
from staticgraph.files.named_module import require_module
from staticgraph.steps.compilation.modes import CUDA_MODES
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import waiting
from staticgraph.training.config import SIZES
from staticgraph.training.options import HEADS, MODELS, WITH_HEADS, DataOptions, ModelOptions

if TYPE_CHECKING:
    from torch.nn import Module

    from staticgraph.steps.loss.mean_loss import Loss
    from staticgraph.store.graph_store import GraphStore

# The names of the options that were given, on the command line or in a settings file.
OPTIONS_SET: set[str] = set()


class UsageError(Exception):
    """Options that do not go together; the message says what to give instead."""


def load() -> None:
    """Imports torch and PyG if they are not loaded, with messages to stderr from rank 0."""
    if "torch_geometric" in sys.modules:
        return
    collects = gc.isenabled()
    gc.disable()  # garbage collection took a tenth of the import time
    try:
        if os.environ.get("RANK", "0") != "0":
            import torch_geometric.nn
        else:
            with waiting("loading torch and PyG"):
                import torch_geometric.nn  # noqa: F401
    finally:
        if collects:
            gc.enable()


def require_graph(data: str) -> None:
    """Refuses a missing file of one large graph, then loads torch and PyG.

    Args:
        data: a file, or a name that :mod:`staticgraph.outofcore` knows.

    Raises:
        FileNotFoundError: ``data`` ends in ``.npz`` and does not exist.
    """
    if data.endswith(".npz") and not Path(data).expanduser().exists():
        raise FileNotFoundError(f"{data}: there is no such file (looked in {Path.cwd()})")
    load()


def require_names(
    options: DataOptions, *, model: str | None = None, loss: str | None = None
) -> None:
    """Checks the names of data, model and loss before any data is read, and loads torch and PyG if
    they are needed.

    Args:
        options: the options of the data.
        model: the value of ``--model``; None if no model is run, so that torch is loaded only for
            data that PyG reads.
        loss: the value of ``--loss``, if given.

    Raises:
        UnknownDataset, FileNotFoundError, ValueError: as for :func:`staticgraph.datasets.open`.
        ValueError: the name of the model or the loss is not that of a suitable function.
    """
    from staticgraph.datasets import specs

    specs.check(options.data, target=options.target)
    require_modules(model, loss)
    if model or specs.by_pyg(options.data):
        load()
    require_functions(model, loss)


def require_modules(model: str | None, loss: str | None = None) -> None:
    """Refuses names of missing modules, without importing any.

    Raises:
        ValueError: as for :func:`staticgraph.files.named_module.require_module`.
    """
    note_user_code(model, loss)
    for spec, option in ((model, "--model"), (loss, "--loss")):
        if spec and (option == "--loss" or ":" in spec):
            require_module(spec, option)


def require_functions(model: str | None, loss: str | None = None) -> None:
    """Imports the model's builder and the loss, and refuses them if they cannot be called as such.

    Raises:
        ValueError: as for :func:`staticgraph.models.named.builder_of` and
            :func:`staticgraph.training.tasks.named_loss`.
    """
    if model and ":" in model:
        from staticgraph.models.named import builder_of

        builder_of(model)
    if loss:
        from staticgraph.training.tasks import named_loss

        named_loss(loss)


# ---------------------------------------------------------------------- checks of options


def check_sizes(model: str, hidden: int, heads: int = HEADS) -> None:
    """Refuses sizes of the zoo for a ``module:build`` model, and heads that do not divide the
    columns of a zoo model.

    Raises:
        UsageError: with what to give instead.
    """
    sizes = [name for name in SIZES if name in OPTIONS_SET]
    if ":" in model and sizes:
        raise UsageError(
            f"--{sizes[0]} is of the models {', '.join(MODELS)}; {model} builds its own: "
            f"leave --{sizes[0]} out"
        )
    if model in WITH_HEADS and hidden % heads:
        near = max(heads, hidden - hidden % heads)
        raise UsageError(
            f"argument --hidden: {model} has {how_many(heads, 'head')}, which do not divide "
            f"hidden={hidden}: give --hidden {near}"
        )


def check_mode(mode: str, device: str, allow_cpu: bool | None = None) -> None:
    """Refuses a mode that records CUDA graphs if there is certainly no CUDA.

    Before torch is imported, this is decided by the requested device and the version of torch's
    wheel.

    Args:
        mode: the compile mode.
        device: the value of ``--device``.
        allow_cpu: whether the mode may run without recording; None if the command has no such
            option.

    Raises:
        UsageError: with the modes that a CPU runs.
    """
    if mode not in CUDA_MODES or allow_cpu or not _without_cuda(device):
        return
    others = "fused, default, eager or auto"
    if mode == "max-autotune":
        others = f"max-autotune-no-cudagraphs, {others}"
    anyhow = "" if allow_cpu is None else "; --allow-cpu runs it all the same, and records nothing"
    raise UsageError(
        f"argument --compile-mode: {mode} records CUDA graphs, and this runs on a CPU: give "
        f"{others}{anyhow}"
    )


def _without_cuda(device: str) -> bool:
    """Whether ``--device`` certainly means a CPU; ``cuda`` without CUDA is refused elsewhere."""
    if device != "auto":
        return device == "cpu"
    torch = sys.modules.get("torch")
    if torch is not None:
        return not torch.cuda.is_available()
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


# ---------------------------------------------------------------------- what options name


def open_data(options: DataOptions, seed: int = 0) -> GraphStore:
    """Opens the data that the options name.

    Args:
        options: the options of the data.
        seed: the seed of a random split.

    Raises:
        UnknownDataset, FileNotFoundError, BadGraph: as for :func:`staticgraph.datasets.open`.
    """
    from staticgraph import datasets

    with waiting(f"opening {options.data}"):
        return datasets.open(options.data, target=options.target, task=options.task, seed=seed)


def build_without_data(model: str, seed: int = 0) -> Module | None:
    """Builds the model of ``--model MODULE:NAME``, with the seed's weights, before data is read;
    None if it takes the data or is a model of the zoo.

    Raises:
        ValueError: the result is not a ``torch.nn.Module``, or has no trainable parameters.
    """
    import torch

    from staticgraph.models.named import built_without_data, require_trainable

    torch.manual_seed(seed)
    module = built_without_data(model)
    if module is not None:
        require_trainable(module, model)
    return module


def build_model(
    options: ModelOptions,
    store: GraphStore,
    num_outputs: int,
    early: Module | None = None,
    seed: int | None = None,
) -> Module:
    """Builds the model that the options name, unless it is built already.

    Args:
        options: the options of the model.
        store: the data.
        num_outputs: the number of output columns of a zoo model.
        early: the result of :func:`build_without_data`.
        seed: the seed of the weights; None to draw them as they come.

    Raises:
        ValueError: the model has no trainable parameters.
    """
    if early is not None:
        return early
    import torch

    from staticgraph.models.named import require_trainable
    from staticgraph.training.parts import model_of

    if seed is not None:
        torch.manual_seed(seed)
    model = model_of(options, store, num_outputs)
    require_trainable(model, options.model)
    return model


def loss_of(options: Any, store: GraphStore) -> tuple[Loss, int]:
    """The loss of the options, or the one that fits the target, and the number of outputs that a
    model of the zoo then needs.

    Args:
        options: :class:`ModelOptions`.
        store: the data.

    Raises:
        BadGraph: no loss was given, and the data has no target that defines a task.
        ValueError: the name is not that of a loss function.
    """
    from staticgraph.errors import BadGraph
    from staticgraph.training.tasks import TaskLoss, named_loss, task_of

    if options.loss:
        return named_loss(options.loss), 1
    try:
        task = task_of(store, options.task)
    except BadGraph as error:
        raise BadGraph(
            f"{error}; or give --loss MODULE:NAME, which is loss(out, batch), one value per row"
        ) from None
    return TaskLoss(task), task.num_outputs
