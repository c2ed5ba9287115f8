"""A one-line message for an error that the user can mend: what is wrong, where, and what to do.

A traceback through a command, a runner, torch and PyG hides the one line that the user can fix, and
torch's own message about a step that it cannot compile is a page of hints, frames and links. An
error within this library remains a bug with its traceback, unless it was raised on purpose.
"""

from __future__ import annotations

import ast
import errno
import linecache
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
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
# A line of this library's own message about the captured graph.
_IN_GRAPH = re.compile(r"^  .+ at (?P<file>\S+):(?P<line>\d+): ", re.MULTILINE)
# An operation on fake tensors that fails because of a wrong shape, as it would in eager mode.
_OPERATION = re.compile(r"got (\w+\(.+\))")
_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_ON_DATA = re.compile(r"data-dependent|depend on data|\.item\(\)", re.IGNORECASE)

Frame = tuple[str, int, str]


def note_user_code(model: str | None, loss: str | None = None) -> None:
    """Notes the code that ``--model`` and ``--loss`` name, for messages."""
    options = {"--model": model, "--loss": loss}
    USER_CODE.update({name: spec for name, spec in options.items() if spec and ":" in spec})


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
    if isinstance(error, MemoryError) or ("torch" in sys.modules and _is_out_of_memory(error)):
        first = str(error).splitlines()[0] if str(error) else "none is left"
        return f"out of memory ({first}): ask for smaller sizes or batches"
    filename, line, _ = _frames(error)[-1]
    stated = isinstance(error, ValueError) or (
        isinstance(error, TypeError) and _raises(filename, line)
    )
    return str(error) if stated and filename.startswith(HOME) else None


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


def _is_out_of_memory(error: Exception) -> bool:
    from staticgraph.probing.out_of_memory import is_out_of_memory

    return is_out_of_memory(error)


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
    """One line about a step that torch could not compile, instead of the page that torch writes."""
    if os.environ.get(TRACEBACK):
        return f"{error}\n{error.__context__}"
    if not USER_CODE:
        return str(error)
    frame, words = _compile_failure(error)
    where = "" if frame is None else f"{_shown(*frame)}: "
    return f"{_options()}: {where}{words} ({TRACEBACK}=1 shows every call)"


def _compile_failure(error: Exception) -> tuple[Frame | None, str]:
    """Where and why a step could not be compiled.

    Returns:
        File, line and function (empty if unknown) of the user's code that was traced last, or None
        if this library or no line of the user raised the error; and the reason.
    """
    from staticgraph.steps.tracing.trace import observed

    text = str(error.__context__)
    frames = [(m["file"], int(m["line"]), m["name"]) for m in _FRAME.finditer(text)]
    frames = frames or [(m["file"], int(m["line"]), "") for m in _IN_GRAPH.finditer(text)]
    place = next((frame for frame in reversed(frames) if _is_users(frame[0])), None)
    if raised := observed(error.__context__):
        file, line, _ = frames[-1] if frames else ("", 0, "")
        if _raises(file, line) and not _is_users(file):  # raised by this library about its input
            return None, _words(raised, plain=True)
        # Torch loses the line of an exception that leaves a with block.
        return place, _words(raised) + ("" if place else "; --compile-mode eager says where")
    if operation := _OPERATION.search(text):
        return place, _words(operation[1])
    if _ON_DATA.search(text):
        why = "a number or a size in it follows from data, and a fixed shape has neither"
    else:
        why = f"torch.compile cannot follow it: {text.strip().splitlines()[0].rstrip('.')}"
    return place, f"{why}; --compile-mode eager runs it, staticgraph check says more"


def _words(raised: str, *, plain: bool = False) -> str:
    """``ValueError('text')`` in the form that Python prints; with ``plain`` only the text."""
    call = _CALL.fullmatch(raised)
    if call is None:
        return raised
    try:
        text = str(ast.literal_eval(call[2]))
    except (SyntaxError, ValueError):
        text = call[2]
    first = text.strip().partition("\n")[0]
    return first if plain else f"{call[1]}: {first}" if first else call[1]


def _place(error: Exception) -> str | None:
    """The innermost line of the user's code; None if the error is a bug of this library."""
    if isinstance(error, SyntaxError) and _is_users(error.filename or ""):
        return f"{_short(error.filename or '')}, line {error.lineno}"
    frames = _frames(error)
    filename, line, _ = frames[-1]
    if filename.startswith(HOME) and not _raises(filename, line):
        return None
    return next((_shown(*frame) for frame in reversed(frames) if _is_users(frame[0])), None)


def _frames(error: Exception) -> list[Frame]:
    """File, line and function of each call of the traceback, the innermost last."""
    return [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]


def _raises(filename: str, line: int) -> bool:
    return linecache.getline(filename, line).lstrip().startswith("raise ")


def _shown(filename: str, line: int, name: str) -> str:
    where = "" if name in ("", "<module>") else f", in {name}"
    return f"{_short(filename)}, line {line}{where}"


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
