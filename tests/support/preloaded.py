"""What the server of forks imports: all that is the same for each of them, and nothing that a
program does.

It is imported by that server alone (:mod:`support.fork_server`). What it says, of parts of torch
that are deprecated, is nobody's who runs tests.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("support.after_fork").begin()
    for name in (
        *("support.ranks", "support.forked_python", "support.gine_net"),
        *("staticgraph.training.train", "staticgraph.cli"),
        # What a run imports late.
        *("torch.utils.tensorboard", "torchmetrics.functional.classification"),
        *("torchmetrics.functional.regression", "matplotlib.backends.backend_agg"),
        *("staticgraph.training.plots", "torch.distributed.run", "torch.distributed._tensor"),
    ):
        importlib.import_module(name)
    importlib.import_module("support.first_use").make_tables()
importlib.import_module("support.compiled_once").begin()

# As conftest.py has it for the tests: what is here stays, and need not be looked through.
gc.set_threshold(50_000, 20, 20)
gc.collect()
gc.freeze()
# What nobody collects is told of as a leak by libraries that are unloaded.
atexit.register(gc.unfreeze)
