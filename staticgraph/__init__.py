"""Static-shape batching for graph neural networks in PyTorch.

Graphs of any size are batched into a few fixed shapes, and each shape runs as one recorded CUDA
graph::

    store = staticgraph.GraphStore.from_pyg(dataset)
    plan = staticgraph.plan_buckets(store, batch_size=128)
    runner = staticgraph.StaticGraphRunner(model, plan, loss=loss, optimizer=optimizer).warmup()
    for batch in runner.loader(store, shuffle=True):
        runner.step(batch)

The public names are listed once, in ``__init__.pyi`` next to this file, each with the module that
defines it. They are imported on first access: torch and PyG take seconds to import, and
``staticgraph --help`` needs neither.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from typing import Any

import lazy_loader

from staticgraph import errors
from staticgraph.files import jit_cache

jit_cache.ensure()  # before anything is compiled

__version__ = "0.2.0"

_import_name, _, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Where the names are that this package exported once; each still works, with a warning.
_MOVED = {
    **{
        name: f"staticgraph.errors.{name}"
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.StaticGraphError)
    },
    "Auto": "staticgraph.runner.ways.Auto",
    "EvalResult": "staticgraph.runner.inference.EvalResult",
    "Field": "staticgraph.schema.Field",
    "GraphSize": "staticgraph.sizes.capacity.GraphSize",
    "LossTerms": "staticgraph.steps.loss.mean_loss.LossTerms",
    "MemoryModel": "staticgraph.memory.memory_model.MemoryModel",
    "PreflightReport": "staticgraph.checking.report.CheckReport",
    "Report": "staticgraph.runner.report.Report",
    "SizeHistogram": "staticgraph.sizes.histogram.SizeHistogram",
    "StoreWriter": "staticgraph.store.writer.StoreWriter",
    "Subject": "staticgraph.steps.computation.model_setup.Subject",
    "autosize_workers": "staticgraph.plans.worker_count.autosize_workers",
    "counters": "staticgraph.runner.counters.counters",
    "dry_run": "staticgraph.dryrun.dry_run",
    "explain": "staticgraph.checking.explain.explain",
    "no_recompile": "staticgraph.runner.counters.no_recompile",
    "preflight": "staticgraph.checking.check.check",
}
# What to write in place of those that another public name replaces.
_INSTEAD = {
    "Auto": 'mode="auto"; its options are those of staticgraph.runner.ways.Auto',
    "Subject": "its options as arguments, StaticGraphRunner(model, plan, clip_norm=1.0)",
    "explain": "staticgraph.check(model, plan, example, rewrites=True).rewrites",
    "preflight": "staticgraph.check(model, plan, example)",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        if name == "StaticLoader":  # lets PyG's layers recognize static batches outside a runner
            memory = importlib.import_module("staticgraph.batches.slots.batch_memory")
            memory.when_used(lambda: importlib.import_module("staticgraph.nn.functions").install())
        return _import_name(name)
    if name not in _MOVED:
        raise AttributeError(f"module 'staticgraph' has no attribute {name!r}")
    instead = _INSTEAD.get(name, _MOVED[name])
    warnings.warn(
        f"staticgraph.{name} is deprecated: write {instead}", DeprecationWarning, stacklevel=2
    )
    value = globals()[name] = pkgutil.resolve_name(_MOVED[name])
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
