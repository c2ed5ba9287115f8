"""What torch.compile stopped at, in one line: where in the user's code, why, and what to do.

Torch's own text is a page of hints, frames and links. The exception of the model that it met, or
the line that it cannot follow, is what the user can fix.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable

from staticgraph.errors import NotStatic

# Where the exceptions of torch's tracer live.
DYNAMO = "torch._dynamo"
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
# An operation on tensors without values, which a wrong shape stops as it would in eager.
_OPERATION = re.compile(r"got (\w+\(.+\))")
_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_ON_DATA = re.compile(r"data-dependent|\.item\(\)", re.IGNORECASE)

Frame = tuple[str, int, str]


def of_compiling(error: Exception) -> bool:
    """Whether a step could not be compiled, for a reason of torch's."""
    return isinstance(error, NotStatic) and type(error.__context__).__module__.startswith(DYNAMO)


def compile_failure(error: Exception, is_users: Callable[[str], bool]) -> tuple[Frame | None, str]:
    """Where and why a step could not be compiled.

    Args:
        error: one that is :func:`of_compiling`.
        is_users: whether a file is the user's own.

    Returns:
        File, line and function of the user's that was traced last, None where this library or no
        line of theirs raised it; and the reason.
    """
    from staticgraph.steps.tracing.failures import observed

    said = str(error.__context__)
    frames = [(m["file"], int(m["line"]), m["name"]) for m in _FRAME.finditer(said)]
    place = next((frame for frame in reversed(frames) if is_users(frame[0])), None)
    if met := observed(error.__context__):
        file, line, _ = frames[-1] if frames else ("", 0, "")
        stated = linecache.getline(file, line).lstrip().startswith("raise ")
        if stated and not is_users(file):  # by this library, of what it was given
            return None, _words(met, plain=True)
        # Torch forgets the line of what leaves a with block.
        return place, _words(met) + ("" if place else "; --compile-mode eager says where")
    if met := _OPERATION.search(said):
        return place, _words(met[1])
    if _ON_DATA.search(said):
        why = "a number or a size in it follows from data, and a fixed shape has neither"
    else:
        why = f"torch.compile cannot follow it: {said.strip().splitlines()[0].rstrip('.')}"
    return place, f"{why}; --compile-mode eager runs it, staticgraph check says more"


def _words(raised: str, *, plain: bool = False) -> str:
    """``ValueError('text')`` as Python prints it; with ``plain`` the text alone."""
    call = _CALL.fullmatch(raised)
    if call is None:
        return raised
    try:
        text = str(ast.literal_eval(call[2]))
    except (SyntaxError, ValueError):
        text = call[2]
    first = text.strip().partition("\n")[0]
    return first if plain else f"{call[1]}: {first}" if first else call[1]
