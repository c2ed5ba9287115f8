"""Static-shape batching for graph neural networks in PyTorch.

Graphs of any size are batched into a few fixed shapes, and each shape runs as one recorded CUDA
graph::

    store = staticgraph.GraphStore.from_pyg(dataset)
    plan = staticgraph.plan_buckets(store, batch_size=128)
    loader = staticgraph.StaticLoader(store, plan, shuffle=True)
    runner = staticgraph.StaticGraphRunner(model, plan, loss=loss, optimizer=optimizer).warmup()
    for batch in loader:
        runner.step(batch)

The public names are listed once, in ``__init__.pyi`` next to this file, each with the module that
defines it. They are imported on first access: torch and PyG take seconds to import, and
``staticgraph --help`` needs neither.
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
# Names that this package used to export, and the module that defines them now.
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
    if name == "StaticLoader":  # lets PyG's layers recognize static batches outside a runner
        memory = importlib.import_module("staticgraph.batches.slots.batch_memory")
        memory.when_used(lambda: importlib.import_module("staticgraph.nn.functions").install())
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
