"""What the tests share: real molecules, one thread, and the reason for skips without a GPU."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from hypothesis import settings
from support.examples import EXAMPLES
from support.patience import patience

import staticgraph as sg

# Seconds after which a test counts as hanging, read by pytest-timeout.
os.environ.setdefault("PYTEST_TIMEOUT", str(patience(200)))

# Hypothesis draws the same examples in every run, so a failure shows up before a merge and not
# after it. HYPOTHESIS_PROFILE=random draws others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

pytest_plugins = [
    *("support.tiers", "support.places", "support.painted", "support.sampled"),
]

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
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def hiv() -> sg.GraphStore:
    """41,127 molecules of MoleculeNet HIV with OGB's integer features and scaffold split."""
    return sg.datasets.open(EXAMPLES / "hiv.npz")


@pytest.fixture(scope="session")
def esol() -> sg.GraphStore:
    """1,128 molecules with solubility, among them single atoms without a bond."""
    return sg.datasets.open(EXAMPLES / "esol.npz")
