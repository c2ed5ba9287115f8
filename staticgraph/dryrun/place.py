"""Finding the source line of an operation: the model's, else PyG's, else this library's."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterable
from types import FrameType

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# In ascending order of preference.
_OWNERS = ("torch", "staticgraph", "torch_geometric", "model")


def of_stack() -> str:
    """The line that is running, as ``file:line: source``, of the best owner on the stack."""
    frame: FrameType | None = sys._getframe(1)
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, _worth(_of_frame(frame))))
        frame = frame.f_back
    return _best(frames)


def of_trace(trace: str | None) -> str:
    """The line of a traced operation, from the stack that Dynamo recorded; "" without one."""
    frames = [(m["file"], int(m["line"])) for m in _FRAME.finditer(trace or "")]
    return _best([(*f, _worth(_of_file(f[0]))) for f in reversed(frames)])


def _best(frames: Iterable[tuple[str, int, int]]) -> str:
    """The innermost frame of the best owner; frames are given innermost first."""
    best = max(frames, key=lambda frame: frame[2], default=None)
    if best is None or best[2] < 0:
        return ""
    file, line, _ = best
    source = linecache.getline(file, line).strip()
    return f"{file}:{line}" + (f": {source}" if source else "")


def _worth(owner: str) -> int:
    return _OWNERS.index(owner) if owner in _OWNERS else -1


def _of_frame(frame: FrameType) -> str:
    """The owner by module, not by file: PyG writes its message passing code to other files."""
    name = frame.f_globals.get("__name__", "")
    top = name.split(".")[0]
    if name.startswith("staticgraph.models."):
        return "model"
    if name.startswith("staticgraph.dryrun") or top in sys.stdlib_module_names:
        return "python"
    if "torchinductor" in frame.f_code.co_filename:
        return "torch"
    return top if top in _OWNERS else "model"


def _of_file(file: str) -> str:
    if "staticgraph/models/" in file:
        return "model"
    for owner in ("torch", "torch_geometric", "staticgraph"):
        if f"/{owner}/" in file:
            return owner
    return "python" if file.startswith("<") or "/python3" in file else "model"
