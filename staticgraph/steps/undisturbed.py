"""A model run for the sake of looking at it, and nothing of it moves.

Parameters, buffers, gradients and optimizer state are saved by
:mod:`staticgraph.steps.training_state`; here is the rest of what a user's forward may touch:
plain attributes of modules (a counter, a kept activation), buffers bound anew, and the random
states of NumPy and Python.

What it does not put back: a list or dict of the user's that a forward appends to.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from staticgraph.nn.context.asked import APART
from staticgraph.steps.training_state import SavedTraining

SEED = 0


@contextmanager
def undisturbed(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Puts everything back when the block ends; inside it gradients are None, and every block
    draws the same random numbers."""
    saved = SavedTraining(model, optimizer)
    with attributes_kept(model):
        for parameter in model.parameters():
            parameter.grad = None
        torch.manual_seed(SEED)
        np.random.seed(SEED)  # noqa: NPY002
        random.seed(SEED)
        try:
            yield
        finally:
            saved.restore()  # into the tensors that were there, whatever is bound now


@contextmanager
def attributes_kept(model: torch.nn.Module) -> Iterator[None]:
    """Plain attributes of modules, what their buffers are bound to, and the random states of NumPy
    and Python are afterwards what they were."""
    attributes = [(m, dict(vars(m)), dict(m._buffers)) for m in model.modules()]
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        for module, own, buffers in attributes:
            _put_back(vars(module), own)
            _put_back(module._buffers, buffers)
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def _put_back(present: dict[str, Any], before: dict[str, Any]) -> None:
    """Only what has changed: another thread may be reading the rest. What was found out of a norm
    meanwhile is known to the whole runner, and stays."""
    for name in present.keys() - before.keys() - {APART}:
        del present[name]
    for name, value in before.items():
        if name not in present or present[name] is not value:
            present[name] = value
