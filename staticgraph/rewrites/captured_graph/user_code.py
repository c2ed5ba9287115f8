"""Finds the line of user code that a node comes from, and whether it is differentiated there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch.fx import Graph

from staticgraph.rewrites.captured_graph.canonical_ops import Call

_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)\n\s*(.*)')
# Files that PyG generates for each class that passes messages.
_WRITTEN = re.compile(r"_(propagate|edge_updater)_\w+\.py$")
_HOME = Path(__file__).parents[2]
# Folders of torch, of PyG, and of this library that run a model: no lines of the user's.
_LIBRARIES = (
    *(str(Path(file).parent) for file in (torch.__file__, torch_geometric.__file__) if file),
    *(str(_HOME / room) for room in ("batches", "kernels", "nn", "rewrites", "steps")),
)


def line_of(node: Call) -> tuple[str, str]:
    """Returns where a node comes from, and the path of its layer.

    The first is the innermost line of the user's own code, as ``file.py:41``, or, if there is none,
    of any code.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    user_frames = _of_users(frames)
    file, line, _, _ = (user_frames or frames or [("", "", "", "")])[-1]
    where = f"{Path(file).name}:{line}" if file else "no line known"
    return where, layer_of(node)


def has_line(node: Call) -> bool:
    """Whether a line of the user's own code made a node; a field of the batch has none."""
    return bool(_of_users(_FRAME.findall(node.meta.get("stack_trace") or "")))


def _of_users(frames: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [f for f in frames if not f[0].startswith(_LIBRARIES) and not _WRITTEN.search(f[0])]


def layer_of(node: Call) -> str:
    """The path of the innermost module, as in ``model.get_submodule``; for a layer's own
    aggregation, that of the layer."""
    stack: Any = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    if not paths:
        return ""
    matches = re.findall(r"_modules\['?([^'\]]+)'?\]|\.(\w+)", paths[-1])
    names = [a or b for a, b in matches]
    path = [name for name in names if name not in ("__self__", "_model", "_modules")]
    if "aggr_module" in path:
        path = path[: path.index("aggr_module")]
    return ".".join(path)


def differentiated(graph: Graph) -> set[Call]:
    """Returns the nodes that are differentiated inside the graph.

    Training on the result needs their second derivative, which attention with dropout lacks.
    """
    nodes: set[Call] = set()
    left = [node for node in graph.nodes if differentiates(node)]
    while left:
        node = left.pop()
        for before in node.all_input_nodes:
            if before not in nodes:
                nodes.add(before)
                left.append(before)
    return nodes


def differentiates(node: Call) -> bool:
    """Whether a node is a derivative inside of the graph."""
    target = node.target
    if node.op != "call_function":
        return False
    return target is torch.autograd.grad or "autograd.grad" in str(target) or "vjp" in str(target)
