"""The interface of a side of the comparison: plain PyG, or this library in one of its modes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from staticgraph.training.versus.setting import Course


class Filling(NamedTuple):
    """Real rows over physical rows, 0 to 1."""

    nodes: float
    edges: float
    graphs: float


class Side(Protocol):
    """Trains over a course, any number of times.

    Attributes:
        name: its name in tables.
        model: the model that it trains.
        optimizer: the optimizer of the model's parameters.
    """

    name: str
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def prepare(self) -> None:
        """Compiles and records the training step, if the side does so."""
        ...

    def begin(self, course: Course) -> None:
        """Sets the course of the following turns."""
        ...

    def turn(self) -> Tensor:
        """Trains over the course once, loading included, and synchronizes with the device; returns
        the losses ``[batches]``."""
        ...

    def one_step(self) -> AbstractContextManager[Any]:
        """A context manager that gives a function which runs a training step on a loaded batch."""
        ...

    def filling(self) -> Filling:
        """The filling of the batches so far."""
        ...
