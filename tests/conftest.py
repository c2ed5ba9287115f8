"""What the tests share: real molecules, one thread, and the reason for skips without a GPU."""

from __future__ import annotations

import gc
import logging
import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import settings
from support import after_fork, dryrun_server, quick_cpp, quick_templates, quick_tracing
from support.examples import EXAMPLES
from support.patience import patience

import staticgraph as sg

after_fork.begin()
quick_cpp.begin()
quick_templates.begin()
quick_tracing.begin()
quick_cpp.leave_out_headers()

# Seconds after which a test counts as hanging, read by pytest-timeout.
os.environ.setdefault("PYTEST_TIMEOUT", str(patience(200)))

# Hypothesis draws the same examples in every run, so a failure shows up before a merge and not
# after it. HYPOTHESIS_PROFILE=random draws others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

pytest_plugins = [
    *("support.processor_time", "support.tiers", "support.places", "support.forked_runs"),
    *("support.painted", "support.sampled"),
]

# Tracing creates millions of small, long-lived objects; scanning them at every 700 allocations
# takes a fifth of its time. Tests that need something collected collect it themselves.
gc.set_threshold(50_000, 20, 20)

# pytest adds its handlers to this logger too, and with a handler torch prints every graph that it
# compiles. Nobody reads that, and it takes a thirtieth of the compile time.
logging.getLogger("torch.__trace").addHandler = lambda hdlr: None

# Two cores are often busy, and OpenMP threads that wait for a slow one make tiny kernels a hundred
# times slower.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before fixtures, which draw random numbers too
def pytest_runtest_setup() -> None:
    """Make what a test draws independent of the tests that ran before it in its process."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; none is visible to torch")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Freeze everything imported, which lives as long as the process: the collector then skips
    these 400,000 objects each time that a probe or a recording calls it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze what the tests of a file left: the tables of torch's compiler grow to millions of
    objects by the end of a run, and scanning them takes a second each time."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Unfreeze, since unloaded libraries report objects that are never collected as leaks."""
    gc.unfreeze()
    dryrun_server.end()


@pytest.fixture(scope="session")
def forked_dry_runs() -> Iterator[None]:
    """Make dry runs in forks of one process."""
    yield from dryrun_server.forking()


@pytest.fixture(scope="session")
def hiv() -> sg.GraphStore:
    """41,127 molecules of MoleculeNet HIV with OGB's integer features and scaffold split."""
    return sg.datasets.open(EXAMPLES / "hiv.npz")


@pytest.fixture(scope="session")
def esol() -> sg.GraphStore:
    """1,128 molecules with solubility, among them single atoms without a bond."""
    return sg.datasets.open(EXAMPLES / "esol.npz")
