"""What tests share: real molecules, one thread, and the reason for skipping without a GPU."""

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
from support import after_fork, dryrun_server, quick_cpp, quick_templates
from support.examples import EXAMPLES
from support.patience import patience

import staticgraph as sg

after_fork.begin()
quick_cpp.begin()
quick_templates.begin()

# A test that takes longer hangs; pytest-timeout reads this.
os.environ.setdefault("PYTEST_TIMEOUT", str(patience(200)))

# The same examples each time: what fails here failed before it was merged.
# HYPOTHESIS_PROFILE=random draws others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

pytest_plugins = [
    *("support.processor_time", "support.tiers", "support.places", "support.forked_runs"),
    *("support.painted", "support.sampled"),
]

# Tracing makes millions of small objects that live on: looking through them every 700 takes a fifth
# of its time. What a test needs collected it collects.
gc.set_threshold(50_000, 20, 20)

# pytest adds its handlers to this logger too, and where it has one torch prints every graph that it
# compiles, for nobody: a thirtieth of its time.
logging.getLogger("torch.__trace").addHandler = lambda hdlr: None

# Two cores are often busy, and OpenMP threads that wait for one slow tiny kernels a hundredfold.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before fixtures, which draw too
def pytest_runtest_setup() -> None:
    """What a test draws does not depend on those that ran before it in its process."""
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
    """What was imported lives as long as the process: the collector need not go through these
    400,000 objects each time that a probe or a recording asks for it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor need it go again through what the tests of a file left: tables of torch's compiler, some
    millions of objects by the end of a run, a second each time."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """What nobody collects is told of as a leak by libraries that are unloaded."""
    gc.unfreeze()
    dryrun_server.end()


@pytest.fixture(scope="session")
def forked_dry_runs() -> Iterator[None]:
    """Dry runs are made by forks of one process."""
    yield from dryrun_server.forking()


@pytest.fixture(scope="session")
def hiv() -> sg.GraphStore:
    """41,127 molecules of MoleculeNet HIV with OGB's integer features and scaffold split."""
    return sg.datasets.open(EXAMPLES / "hiv.npz")


@pytest.fixture(scope="session")
def esol() -> sg.GraphStore:
    """1,128 molecules with solubility, among them single atoms without a bond."""
    return sg.datasets.open(EXAMPLES / "esol.npz")
