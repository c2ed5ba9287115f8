"""Static-shape batching for graph neural networks in PyTorch.

Graphs of every size go in, a few fixed shapes come out, and each shape runs as one recorded CUDA
graph::

    store = staticgraph.GraphStore.from_pyg(dataset)
    plan = staticgraph.plan_buckets(store, batch_size=128)
    loader = staticgraph.StaticLoader(store, plan, shuffle=True)
    runner = staticgraph.StaticGraphRunner(model, plan, loss=loss, optimizer=optimizer).warmup()
    for batch in loader:
        runner.step(batch)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from staticgraph.files import jit_cache

if TYPE_CHECKING:
    from staticgraph import datasets, outofcore
    from staticgraph.batches.loader import StaticLoader
    from staticgraph.batches.static_batch import StaticBatch
    from staticgraph.dryrun import dry_run
    from staticgraph.errors import (
        BadGraph,
        BudgetExceeded,
        GraphTooLarge,
        NonFiniteLoss,
        NotStatic,
        PaddingLeaks,
        PlanMismatch,
        SlotsExhausted,
        StoreCorrupt,
    )
    from staticgraph.memory.budget import MemoryBudget, MemoryModel
    from staticgraph.nn import convert
    from staticgraph.plans.choose import BucketPlan, plan_buckets
    from staticgraph.preflight.preflight import preflight
    from staticgraph.preflight.report import PreflightReport
    from staticgraph.probing.probe import probe
    from staticgraph.runner.report import Report
    from staticgraph.runner.runner import EvalResult, StaticGraphRunner
    from staticgraph.schema import Field, Schema
    from staticgraph.sizes.capacity import Capacity, GraphSize
    from staticgraph.sizes.histogram import SizeHistogram
    from staticgraph.steps.recordable_optimizer import make_capturable
    from staticgraph.store.graph_store import GraphStore

jit_cache.ensure()  # before anything is compiled

__version__ = "0.1.0"

# Where each name lives. They are imported when first asked for: torch and PyG take seconds, and
# ``staticgraph --help`` needs neither.
_HOMES = {
    "BadGraph": "errors",
    "BucketPlan": "buckets",
    "BudgetExceeded": "errors",
    "Capacity": "sizes",
    "EvalResult": "runner",
    "Field": "schema",
    "GraphSize": "sizes",
    "GraphStore": "store",
    "GraphTooLarge": "errors",
    "MemoryBudget": "memory.budget",
    "MemoryModel": "memory.model",
    "NonFiniteLoss": "errors",
    "NotStatic": "errors",
    "PaddingLeaks": "errors",
    "PlanMismatch": "errors",
    "PreflightReport": "running.preflight_report",
    "Report": "report",
    "Schema": "schema",
    "SizeHistogram": "sizes",
    "SlotsExhausted": "errors",
    "StaticBatch": "batch",
    "StaticGraphRunner": "runner",
    "StaticLoader": "loader",
    "StoreCorrupt": "errors",
    "convert": "nn",
    "datasets": "datasets",
    "dry_run": "dryrun",
    "make_capturable": "running.recordable_optimizer",
    "outofcore": "outofcore",
    "plan_buckets": "buckets",
    "preflight": "running.preflight",
    "probe": "memory.probe",
}

__all__ = [
    "BadGraph",
    "BucketPlan",
    "BudgetExceeded",
    "Capacity",
    "EvalResult",
    "Field",
    "GraphSize",
    "GraphStore",
    "GraphTooLarge",
    "MemoryBudget",
    "MemoryModel",
    "NonFiniteLoss",
    "NotStatic",
    "PaddingLeaks",
    "PlanMismatch",
    "PreflightReport",
    "Report",
    "Schema",
    "SizeHistogram",
    "SlotsExhausted",
    "StaticBatch",
    "StaticGraphRunner",
    "StaticLoader",
    "StoreCorrupt",
    "convert",
    "datasets",
    "dry_run",
    "make_capturable",
    "outofcore",
    "plan_buckets",
    "preflight",
    "probe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'staticgraph' has no attribute {name!r}")
    home = importlib.import_module(f"staticgraph.{_HOMES[name]}")
    value = home if name == _HOMES[name] else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
