"""A one-line message for an error in a user's model or loss: where in their code, and why.

A traceback through a command, a runner, torch and PyG hides the one line that the user can fix. An
error within this library remains a bug with its traceback, unless it was raised on purpose.
"""

from __future__ import annotations

import argparse
import linecache
import os
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

import staticgraph
from staticgraph.cli.compile_failures import compile_failure, of_compiling

# The environment variable that enables the traceback.
TRACEBACK = "STATICGRAPH_TRACEBACK"
HOME = str(Path(staticgraph.__file__).parent) + os.sep
# Autograd's message if the loss does not depend on any trained parameter.
NO_GRADIENT = "does not require grad and does not have a grad_fn"
# Torch's exception if a model reads the value of a fake tensor.
READS_A_NUMBER = "DataDependentOutputException"


def failure_of(error: Exception, args: argparse.Namespace) -> str | None:
    """The message for an error in code that ``--model`` or ``--loss`` names.

    Args:
        error: the error, with its traceback.
        args: the arguments of the command.

    Returns:
        One line; None if no such code was named, the error comes from elsewhere, or
        :data:`TRACEBACK` is set.
    """
    options = {f"--{name}": getattr(args, name, None) for name in ("model", "loss")}
    given = " ".join(f"{name} {value}" for name, value in options.items() if ":" in (value or ""))
    if not given or os.environ.get(TRACEBACK):
        return None
    if of_compiling(error):
        frame, words = compile_failure(error, _is_users)
        where = "" if frame is None else f"{_at(*frame)}: "
        return f"{given}: {where}{words} ({TRACEBACK}=1 shows every call)"
    text = (error.msg if isinstance(error, SyntaxError) else str(error)).strip()
    words = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    if NO_GRADIENT in words:
        return (
            f"{given}: the loss depends on nothing that is trained: look for detach(), no_grad() "
            "and item() on its way, and for parameters with requires_grad=False"
        )
    place = _place(error)
    if place is None:
        return None
    if type(error).__name__ == READS_A_NUMBER:
        words = "it reads a number off a tensor, which has none here: staticgraph check says more"
    return f"{given}: {place}: {words} ({TRACEBACK}=1 shows every call)"


def _place(error: Exception) -> str | None:
    """The innermost line of the user's code; None if the error is a bug of this library."""
    if isinstance(error, SyntaxError) and _is_users(error.filename or ""):
        return f"{_short(error.filename or '')}, line {error.lineno}"
    frames = list(_frames(error.__traceback__))
    filename, line, _ = frames[-1]
    ours = filename.startswith(HOME)
    if ours and not linecache.getline(filename, line).lstrip().startswith("raise "):
        return None
    for filename, line, name in reversed(frames):
        if _is_users(filename):
            return _at(filename, line, name)
    return None


def _at(filename: str, line: int, name: str) -> str:
    where = "" if name in ("", "<module>") else f", in {name}"
    return f"{_short(filename)}, line {line}{where}"


def _frames(trace: TracebackType | None) -> list[tuple[str, int, str]]:
    return [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(trace)
    ]


def _is_users(filename: str) -> bool:
    """Whether a file belongs to neither this library, an installed package nor Python."""
    installed = {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    others = (HOME, "<", *(f"{folder}{os.sep}" for folder in installed))
    return bool(filename) and not filename.startswith(others)


def _short(filename: str) -> str:
    """The path relative to the working directory, if it is below it."""
    here = os.path.relpath(filename)
    return filename if here.startswith("..") else here
