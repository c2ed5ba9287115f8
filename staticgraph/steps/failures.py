"""A model that stops, as an obstacle: which line of the model, and in few words why."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from typing import Any

from staticgraph.errors import NotStatic
from staticgraph.steps.obstacles import Obstacle

_LIBRARIES = ("/torch/", "/torch_geometric/", "/staticgraph/", "/jinja2/")
_OBSERVED = re.compile(r"raised exception (\w+\(.+\))")
# How torch 2.11 writes the exception's text within that.
_CONSTANT = re.compile(r"\(\[ConstantVariable\(\w+: (.+)\)\]\)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def raised(error: Exception, module: str) -> Obstacle:
    """An exception as an obstacle, at the innermost line that belongs to the model."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = ([f for f in frames if _of_model(f.filename)] or frames)[-1]
    kind = "refused" if isinstance(error, NotStatic) else "the model raises"
    text = str(error) if isinstance(error, NotStatic) else f"{type(error).__name__}: {error}"
    return Obstacle(text, f"{frame.filename}:{frame.lineno}", frame.line or "", kind, module)


def untraceable(message: str, model: type) -> Obstacle:
    """What torch.compile said when it stopped, in its first words, at the innermost line of the
    model that its message names; at the model's class where it names none."""
    lines = [line.strip() for line in message.strip().splitlines()]
    said = [lines[0] if lines else "torch.compile gave no reason"]
    said += [line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")]
    frames = [(m["file"], int(m["line"])) for m in _FRAME.finditer(message)]
    frames = [f for f in frames if "/staticgraph/" not in f[0]]
    own = [f for f in frames if _of_model(f[0])] or frames
    where = f"{own[-1][0]}:{own[-1][1]}" if own else defined_at(model)
    source = linecache.getline(*own[-1]).strip() if own else f"class {model.__name__}"
    return Obstacle(": ".join(said[:2]), where, source, "cannot be traced")


def observed(error: BaseException | None) -> str | None:
    """The exception of the model or the loss that torch.compile met while it traced, as torch's
    message has it; None where tracing stopped for a reason of its own."""
    while error is not None:
        if found := _OBSERVED.search(str(error)):
            return _CONSTANT.sub(r"(\1)", found[1])
        error = error.__cause__ or error.__context__
    return None


def defined_at(kind: Any) -> str:
    """``file:line`` of a class or a function."""
    try:
        return f"{inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        return kind.__module__


def _of_model(file: str) -> bool:
    return not any(name in file for name in _LIBRARIES)
