"""What in a traced step depends on data and so cannot have one fixed shape.

``torch.compile(fullgraph=True)`` does not prove static shapes: it traces ``x.max().item()`` and
``nonzero()`` as symbols without a value, compiles them, and the recording fails or is skipped later.
This reads the traced graph before it is compiled and names each such operation with its line.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols


class Obstacle(NamedTuple):
    """One operation whose result depends on data, and where the model calls it."""

    operation: str
    where: str
    line: str

    def __str__(self) -> str:
        return f"{self.operation} at {self.where}: {self.line}"


def obstacles(graph: torch.fx.GraphModule) -> list[Obstacle]:
    """The operations that bring a size or a number from data into the trace, in order; those that
    only pass it on are left out."""
    found, known = [], set()
    for node in graph.graph.nodes:
        fresh = _unbacked(node.meta.get("example_value")) - known
        if fresh and node.op in ("call_function", "call_method", "call_module"):
            where, line = _place(node.stack_trace or "")
            found.append(Obstacle(_name(node.target), where, line))
        known |= fresh
    return found


def _unbacked(value: Any) -> set[Any]:
    if isinstance(value, tuple | list):
        return set().union(*(_unbacked(item) for item in value))
    if isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
        return set(free_unbacked_symbols(value))
    return set()


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _place(stack: str) -> tuple[str, str]:
    """File, line number and source of the innermost frame of a stack trace."""
    frames = re.findall(r'File "(.+?)", line (\d+), in .+\n\s+(.+)', stack)
    if not frames:
        return "an unknown place", ""
    file, number, line = frames[-1]
    return f"{file}:{number}", line.strip()
