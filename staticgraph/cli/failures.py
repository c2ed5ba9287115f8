"""A one-line message for an error that the user can mend: what is wrong, where, and what to do.

A traceback through a command, a runner, torch and PyG hides the one line that the user can fix, and
torch's own message about a step that it cannot compile is a page of hints, frames and links. An
error within this library remains a bug with its traceback, unless it was raised on purpose.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path

import staticgraph
from staticgraph.errors import NotStatic, StaticGraphError

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
