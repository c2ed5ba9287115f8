"""A one-line message for a torch.compile failure: where in the user's code, why, and what to do.

Torch's own message is a page of hints, frames and links. The user can fix the exception of the
model, or the line that torch cannot trace.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable

from staticgraph.errors import NotStatic

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


def of_compiling(error: Exception) -> bool:
    """Whether an error means that torch could not compile a step."""
    return isinstance(error, NotStatic) and type(error.__context__).__module__.startswith(TRACERS)


def compile_failure(error: Exception, is_users: Callable[[str], bool]) -> tuple[Frame | None, str]:
    """Where and why a step could not be compiled.

    Args:
        error: an error for which :func:`of_compiling` is true.
        is_users: tells whether a file is the user's own.

    Returns:
        File, line and function (empty if unknown) of the user's code that was traced last, or None
        if this library or no line of the user raised the error; and the reason.
    """
    from staticgraph.steps.tracing.failures import observed

    said = str(error.__context__)
    frames = [(m["file"], int(m["line"]), m["name"]) for m in _FRAME.finditer(said)]
    frames = frames or [(m["file"], int(m["line"]), "") for m in _IN_GRAPH.finditer(said)]
    place = next((frame for frame in reversed(frames) if is_users(frame[0])), None)
    if met := observed(error.__context__):
        file, line, _ = frames[-1] if frames else ("", 0, "")
        stated = linecache.getline(file, line).lstrip().startswith("raise ")
        if stated and not is_users(file):  # raised by this library about its input
            return None, _words(met, plain=True)
        # Torch loses the line of an exception that leaves a with block.
        return place, _words(met) + ("" if place else "; --compile-mode eager says where")
    if met := _OPERATION.search(said):
        return place, _words(met[1])
    if _ON_DATA.search(said):
        why = "a number or a size in it follows from data, and a fixed shape has neither"
    else:
        why = f"torch.compile cannot follow it: {said.strip().splitlines()[0].rstrip('.')}"
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
