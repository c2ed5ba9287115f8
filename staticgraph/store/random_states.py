"""The random states of a process: torch's on the CPU, NumPy's and Python's, kept and seeded.

Transforms of PyG draw from all three.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept_random_states(seed: int | None = None) -> Iterator[None]:
    """Afterwards all three are what they were.

    Args:
        seed: inside, all three begin with it; they go on as they were where None.
    """
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 - transforms draw from this one
    try:
        if seed is not None:
            torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
