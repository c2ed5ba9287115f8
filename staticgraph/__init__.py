"""Static-shape batching for graph neural networks in PyTorch.

Graphs of every size go in, a few fixed shapes come out, and each shape runs as one recorded CUDA
graph::

    store = staticgraph.GraphStore.from_pyg(dataset)
    plan = staticgraph.plan_buckets(store, batch_size=128)
    loader = staticgraph.StaticLoader(store, plan, shuffle=True)
    runner = staticgraph.StaticGraphRunner(model, plan, loss=loss, optimizer=optimizer).warmup()
    for batch in loader:
        runner.step(batch)

The public names stand once, in ``__init__.pyi`` beside this file, each with the module it lives in.
They are imported when first asked for: torch and PyG take seconds, and ``staticgraph --help`` needs
neither.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

from staticgraph.files import jit_cache

jit_cache.ensure()  # before anything is compiled

__version__ = "0.1.0"

_HOMES = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]
# What stood at the front door once, and the module that has it.
_MOVED = {"PreflightReport": "staticgraph.checking.report"}


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        raise AttributeError(f"staticgraph.{name} is in {_MOVED[name]}; import it from there")
    if name not in _HOMES:
        raise AttributeError(f"module 'staticgraph' has no attribute {name!r}")
    home = _HOMES[name]
    if home == "staticgraph":
        value = importlib.import_module(f"staticgraph.{name}")
    else:
        value = getattr(importlib.import_module(home), name)
    if name == "StaticLoader":  # PyG's layers notice batches that no forward of ours knows
        memory = importlib.import_module("staticgraph.batches.slots.batch_memory")
        memory.when_used(lambda: importlib.import_module("staticgraph.nn.functions").install())
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
