"""Saves, seeds and restores the random states of torch (CPU), NumPy and Python.

PyG's transforms draw from all three.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept_random_states(seed: int | None = None) -> Iterator[None]:
    """Restores all three random states at the end of the block.

    Args:
        seed: seeds all three at the start of the block; None leaves them as they are.
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
