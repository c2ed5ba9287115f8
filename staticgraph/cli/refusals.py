"""What the user can mend: refused before anything is loaded, or said afterwards in one line.

Importing torch and PyG takes seconds. What can be found without them, such as conflicting options
or a missing file, is refused before.

A traceback through a command, a runner, torch and PyG hides the one line that the user can fix, and
torch's own message about a step that it cannot compile is a page of hints, frames and links. An
error within this library remains a bug with its traceback, unless it was raised on purpose.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path

import staticgraph
from staticgraph.errors import NotStatic, StaticGraphError
from staticgraph.files.named_module import require_module
from staticgraph.steps.compilation.modes import CUDA_MODES
from staticgraph.text.progress import waiting
from staticgraph.training.config import SIZES, named_in, require_run
from staticgraph.training.options import MODELS, DataOptions

# The names of the options that were given, on the command line or in a settings file.
OPTIONS_SET: set[str] = set()
# The environment variable that enables the traceback.
TRACEBACK = "STATICGRAPH_TRACEBACK"
HOME = str(Path(staticgraph.__file__).parent) + os.sep
# The user's own code that the command runs: "--model" or "--loss" -> ``module:name``.
USER_CODE: dict[str, str] = {}
# Autograd's message if the loss does not depend on any trained parameter.
NO_GRADIENT = "does not require grad and does not have a grad_fn"
# Torch's exception if a model reads the value of a fake tensor.
READS_A_NUMBER = "DataDependentOutputException"
# The packages of the exceptions of torch's tracer, and of sizes that are data.
TRACERS = ("torch._dynamo", "torch.fx.experimental")
MORE = "staticgraph check or --compile-mode eager says more"


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


# ---------------------------------------------------------------------- errors


def message_of(error: Exception) -> str | None:
    """The message for the user, with what to do; None for a bug of this library."""
    if isinstance(error, NotStatic) and type(error.__context__).__module__.startswith(TRACERS):
        return _compile_message(error)
    return _stated(error) or _in_user_code(error)


def _stated(error: Exception) -> str | None:
    """The message of an error that is meant for the user: of this library, the system or memory.

    A ValueError or TypeError is, if this library raised it; a TypeError that Python raised in a
    line of this library is a bug."""
    if full := _full_disk(error):
        place = f"{os.fsdecode(full.filename)}: " if full.filename else ""
        return f"{place}No space left on device: make room, or write to another place"
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes) and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if isinstance(error, StaticGraphError | OSError):
        return str(error)
    memory = isinstance(error, MemoryError)
    if "torch" in sys.modules:
        from staticgraph.probing.out_of_memory import is_out_of_memory

        memory = is_out_of_memory(error)
    if memory:
        first = str(error).splitlines()[0] if str(error) else "none is left"
        return f"out of memory ({first}): ask for smaller sizes or batches"
    place = traceback.extract_tb(error.__traceback__)[-1]
    stated = isinstance(error, ValueError) or (isinstance(error, TypeError) and _raises(place))
    return str(error) if stated and place.filename.startswith(HOME) else None


def _full_disk(error: BaseException | None) -> OSError | None:
    """Returns the error of a full disk, if that is the cause: by the system's error number, by
    NumPy's message without one, or in the context of torch's error for an unfinished file."""
    while error is not None:
        if isinstance(error, OSError) and (
            error.errno in (errno.ENOSPC, errno.EDQUOT)
            or re.fullmatch(r"\d+ requested and \d+ written", str(error))
        ):
            return error
        error = error.__context__
    return None


def _in_user_code(error: Exception) -> str | None:
    """The message for an error in code that ``--model`` or ``--loss`` names; None if no such code
    was named, the error comes from elsewhere, or :data:`TRACEBACK` is set."""
    if not USER_CODE or os.environ.get(TRACEBACK):
        return None
    text = (error.msg if isinstance(error, SyntaxError) else str(error)).strip()
    words = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    if NO_GRADIENT in words:
        return (
            f"{_options()}: the loss depends on nothing that is trained: look for detach(), "
            "no_grad() and item() on its way, and for parameters with requires_grad=False"
        )
    place = _place(error)
    if place is None:
        return None
    if type(error).__name__ == READS_A_NUMBER:
        words = "it reads a number off a tensor, which has none here: staticgraph check says more"
    return f"{_options()}: {place}: {words} ({TRACEBACK}=1 shows every call)"


def _options() -> str:
    return " ".join(f"{name} {spec}" for name, spec in USER_CODE.items())


def _compile_message(error: Exception) -> str:
    """The lines of the runner's message about a step that torch could not compile, as one."""
    if os.environ.get(TRACEBACK):
        return f"{error}\n{error.__context__}"
    if not USER_CODE:
        return str(error)
    _, *lines = str(error).replace("mode='eager'", "--compile-mode eager").splitlines()
    words = "; ".join(line.strip() for line in lines if "error.__context__" not in line)
    return f"{_options()}: {words}; {MORE} ({TRACEBACK}=1 shows every call)"


def _place(error: Exception) -> str | None:
    """The innermost line of the user's code; None if the error is a bug of this library."""
    if isinstance(error, SyntaxError) and _is_users(error.filename or ""):
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames[-1].filename.startswith(HOME) and not _raises(frames[-1]):
        return None
    frame = next((frame for frame in reversed(frames) if _is_users(frame.filename)), None)
    return None if frame is None else f"{frame.filename}, line {frame.lineno}, in {frame.name}"


def _raises(frame: traceback.FrameSummary) -> bool:
    return (frame.line or "").startswith("raise ")


def _is_users(filename: str) -> bool:
    """Whether a file belongs to neither this library, an installed package nor Python."""
    installed = {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    others = (HOME, "<", *(f"{folder}{os.sep}" for folder in installed))
    return bool(filename) and not filename.startswith(others)
