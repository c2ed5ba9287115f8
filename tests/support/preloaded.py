"""The imports of the fork server: everything that all forks share, without the work of a program.

Only that server (:mod:`support.fork_server`) imports this module. Deprecation warnings of torch are
ignored here, as they do not concern the tests.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("support.after_fork").begin()
    importlib.import_module("support.quick_tracing").begin()
    for name in (
        *("support.ranks", "support.forked_python", "support.gine_net"),
        *("staticgraph.training.train", "staticgraph.cli"),
        # Late imports of a run.
        *("torch.utils.tensorboard", "matplotlib.backends.backend_agg"),
        *("staticgraph.training.plots", "torch.distributed.run", "torch.distributed._tensor"),
    ):
        importlib.import_module(name)
    importlib.import_module("support.first_use").make_tables()
importlib.import_module("support.compiled_once").begin()

# As in conftest.py for the tests: these objects stay, and the collector need not scan them.
gc.set_threshold(50_000, 20, 20)
gc.collect()
gc.freeze()
# Libraries report frozen objects as leaks when they are unloaded.
atexit.register(gc.unfreeze)
